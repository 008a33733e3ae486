// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

/// What all versions of NCCL's net plugin ABI share: layouts and numbers that the outside fixes. Members that
/// are functions return a Code. Included by whoever loads a plugin and by our own plugin (softnet).
namespace p2p::nccl_net::abi {

enum Code : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

/// Bits of `pointer_support`; the first two are also the `type` of a registration.
enum PointerType : int { kPointerHost = 1, kPointerCuda = 2, kPointerDmaBuf = 4 };

enum LogLevel : int {
  kLogNone = 0,
  kLogVersion = 1,
  kLogWarn = 2,
  kLogInfo = 3,
  kLogAbort = 4,
  kLogTrace = 5
};
inline constexpr unsigned long kLogInit = 1;
inline constexpr unsigned long kLogNet = 16;

using Logger = void (*)(int level, unsigned long subsystems, const char* where, int line, const char* format,
                        ...);

/// Where a plugin of v10 or newer reports events to NCCL's profiler.
using ProfilerCallback = int (*)(void** event, int type, void* parent, std::int64_t plugin, void* extra);

/// Bytes of the address that `listen` fills and `connect` takes (and writes to).
inline constexpr std::size_t kHandleBytes = 128;

enum DeviceType : int { kDeviceHost = 0, kDeviceUnpack = 1 };

/// The only version of the UNPACK structures there is.
inline constexpr int kUnpackVersion = 7;

/// Filled by `accept` in memory of the caller's.
struct DeviceHandle {
  int type;
  int version;
  void* handle;  ///< of an UNPACK device: an UnpackDevice, in device memory
  std::size_t size;
  int needs_proxy_progress;
};
static_assert(sizeof(DeviceHandle) == 32 && offsetof(DeviceHandle, handle) == 8);

/// From v9 on: the real devices that make up a virtual one (v12 has room for more).
template <int kMax>
struct VirtualDevice {
  int count;
  int devices[kMax];
};

/// v10 and newer.
struct Config {
  int traffic_class;
};
inline constexpr int kTrafficClassUndefined = -1;

}  // namespace p2p::nccl_net::abi
