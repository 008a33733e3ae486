// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/mutex.h"
#include "drivers/cuda/driver.h"
#include "drivers/cuda/error.h"

namespace p2p::cuda {

Error error_of(int code, std::string_view what) {
  const auto error = static_cast<cudaError_t>(code);
  // The runtime keeps the last error for whoever asks next; it has been told here.
  static_cast<void>(cudaGetLastError());
  const bool cannot = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
                      error == cudaErrorNotSupported || error == cudaErrorPeerAccessUnsupported ||
                      error == cudaErrorStubLibrary || error == cudaErrorNoKernelImageForDevice;
  return Error{cannot ? ErrorCode::kUnavailable : ErrorCode::kSystem,
               fmt::format("{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error))};
}

Status check(int code, std::string_view what) {
  if (code == cudaSuccess) return {};
  return tl::unexpected<Error>(error_of(code, what));
}

Status available() {
  if (const auto driver = load_driver(); !driver) return tl::unexpected<Error>(driver.error());
  int count = 0;
  if (const int code = cudaGetDeviceCount(&count); code != cudaSuccess) {
    Error error = error_of(code, "count CUDA devices");
    error.code = ErrorCode::kUnavailable;
    return tl::unexpected<Error>(std::move(error));
  }
  if (count == 0) return fail(ErrorCode::kUnavailable, "no CUDA device is visible");
  return {};
}

int device_count() {
  if (!available()) return 0;
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

Result<DeviceUuid> uuid_of(int device) {
  cudaDeviceProp properties{};
  if (const int code = cudaGetDeviceProperties(&properties, device); code != cudaSuccess) {
    return tl::unexpected<Error>(error_of(code, fmt::format("read properties of CUDA device {}", device)));
  }
  DeviceUuid uuid{};
  static_assert(sizeof uuid == sizeof properties.uuid);
  std::memcpy(uuid.data(), &properties.uuid, sizeof uuid);
  return uuid;
}

std::optional<int> find_device(const DeviceUuid& uuid) {
  // Asked of the driver once: it takes milliseconds, and a process keeps its devices.
  static const std::vector<DeviceUuid> devices = [] {
    std::vector<DeviceUuid> all(static_cast<std::size_t>(device_count()));
    for (std::size_t i = 0; i != all.size(); ++i)
      all[i] = uuid_of(static_cast<int>(i)).value_or(DeviceUuid{});
    return all;
  }();
  const auto found = std::find(devices.begin(), devices.end(), uuid);
  if (uuid == DeviceUuid{} || found == devices.end()) return std::nullopt;
  return static_cast<int>(found - devices.begin());
}

std::vector<int> active_devices() {
  std::vector<int> devices;
  const Driver* driver = loaded_driver();
  const int count = driver != nullptr ? device_count() : 0;
  for (int device = 0; device < count; ++device) {
    unsigned flags = 0;
    int active = 0;
    if (driver->primary_state(device, &flags, &active) == CUDA_SUCCESS && active != 0) {
      devices.push_back(device);
    }
  }
  return devices;
}

int current_device() {
  const Driver* driver = loaded_driver();
  CUcontext current = nullptr;
  int device = 0;
  if (driver != nullptr && driver->get_current(&current) == CUDA_SUCCESS && current != nullptr &&
      cudaGetDevice(&device) == cudaSuccess) {
    return device;
  }
  const std::vector<int> active = active_devices();
  return active.empty() ? 0 : active.front();
}

bool reaches(int device, int peer) {
  if (device == peer) return true;
  int can = 0;
  return cudaDeviceCanAccessPeer(&can, device, peer) == cudaSuccess && can != 0;
}

namespace {

/// (device, peer) as this library enabled them.
struct EnabledPeers {
  Mutex mutex;
  std::set<std::pair<int, int>> pairs P2P_GUARDED_BY(mutex);
};

}  // namespace

Status enable_peer(int device, int peer) {
  if (device == peer) return {};
  const DeviceGuard guard(device);
  if (!guard.status()) return guard.status();
  // Asked first, because a refused call counts as an error with memory checkers.
  static EnabledPeers enabled;
  const MutexLock lock(enabled.mutex);
  if (enabled.pairs.contains({device, peer})) return {};
  const int code = cudaDeviceEnablePeerAccess(peer, 0);
  if (code == cudaSuccess) enabled.pairs.insert({device, peer});
  if (code == cudaErrorPeerAccessAlreadyEnabled) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  return check(code, fmt::format("let CUDA device {} reach device {}", device, peer));
}

namespace {

// Contexts that cudaSetDevice was seen to make current, by ordinal.
constexpr std::size_t kContexts = 64;
std::array<std::atomic<CUcontext>, kContexts> contexts{};

bool is_current(int device, CUcontext context) {
  return context != nullptr && device >= 0 && static_cast<std::size_t>(device) < kContexts &&
         contexts[static_cast<std::size_t>(device)].load(std::memory_order_relaxed) == context;
}

void note_current(const Driver& driver, int device) {
  CUcontext context = nullptr;
  if (device < 0 || static_cast<std::size_t>(device) >= kContexts) return;
  if (driver.get_current(&context) == CUDA_SUCCESS) contexts[static_cast<std::size_t>(device)] = context;
}

}  // namespace

DeviceGuard::DeviceGuard(int device) {
  const auto driver = load_driver();
  if (!driver) {
    status_ = tl::unexpected<Error>(driver.error());
    return;
  }
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if ((*driver)->exchange_capture_mode(&mode) == CUDA_SUCCESS) capture_mode_ = mode;
  CUcontext previous = nullptr;
  const bool known = (*driver)->get_current(&previous) == CUDA_SUCCESS;
  if (known && is_current(device, previous)) return;
  restore_ = known;
  previous_ = previous;
  if (device == kAnyDevice) {
    if (previous != nullptr) return;
    const std::vector<int> active = active_devices();
    device = active.empty() ? 0 : active.front();
  }
  if (const int code = cudaSetDevice(device); code != cudaSuccess) {
    status_ = tl::unexpected<Error>(error_of(code, fmt::format("make CUDA device {} current", device)));
    return;
  }
  note_current(**driver, device);
}

DeviceGuard::~DeviceGuard() {
  if (restore_) loaded_driver()->set_current(static_cast<CUcontext>(previous_));
  if (!capture_mode_) return;
  auto mode = static_cast<CUstreamCaptureMode>(*capture_mode_);
  loaded_driver()->exchange_capture_mode(&mode);
}

}  // namespace p2p::cuda
