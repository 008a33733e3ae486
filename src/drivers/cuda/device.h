// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "p2p/result.h"

namespace p2p::cuda {

/// The same for one GPU in every process, whatever CUDA_VISIBLE_DEVICES makes of its ordinal.
using DeviceUuid = std::array<std::byte, 16>;

/// Success if this build has CUDA and this process sees a device, else the reason. Makes no context.
Status available();

/// 0 where `available` fails.
int device_count();

Result<DeviceUuid> uuid_of(int device);

/// The ordinal of the device here; none if this process cannot see it.
std::optional<int> find_device(const DeviceUuid& uuid);

/// Devices on which this process already has a primary context, so that using them costs no memory of GPUs
/// that the program left alone.
std::vector<int> active_devices();

/// The device that is current on this thread; without one the first that this process uses anyway, or 0.
int current_device();

/// True if kernels and copies of `device` reach the memory of `peer` directly.
bool reaches(int device, int peer);

/// Lets kernels of `device` touch the memory that `peer` has in this process. Repeating it is fine.
Status enable_peer(int device, int peer);

/// What DeviceGuard takes for calls to which any device is as good as another.
inline constexpr int kAnyDevice = -1;

/// Makes `device` current on this thread for a scope; kAnyDevice: what is current, else a device that this
/// process uses anyway, because CUDA would make a context on the first one. On the way out it puts back the
/// context that was current, or none, and so never makes one on another device.
///
/// While the program captures a CUDA graph in global mode, CUDA refuses calls such as allocations and queries
/// on every thread, and what was captured is lost. Nothing of ours belongs to a capture, so within the scope
/// this thread says that its calls are safe (relaxed mode).
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  const Status& status() const { return status_; }

 private:
  [[maybe_unused]] void* previous_ = nullptr;  // CUcontext; neither is used in builds without CUDA
  [[maybe_unused]] bool restore_ = false;
  std::optional<int> capture_mode_;  // CUstreamCaptureMode to go back to
  Status status_;
};

}  // namespace p2p::cuda
