// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>

#include "base/error.h"
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

Result<std::string> bus_id_of(int device) {
  std::array<char, 32> text{};
  const int code = cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device);
  if (code != cudaSuccess) {
    return tl::unexpected<Error>(error_of(code, fmt::format("ask for the place of CUDA device {}", device)));
  }
  std::string id(text.data());
  std::transform(id.begin(), id.end(), id.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return id;
}

std::optional<int> find_device(const DeviceUuid& uuid) {
  const int count = device_count();
  for (int device = 0; device < count; ++device) {
    if (const auto found = uuid_of(device); found && *found == uuid) return device;
  }
  return std::nullopt;
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

Status enable_peer(int device, int peer) {
  if (device == peer) return {};
  const DeviceGuard guard(device);
  if (!guard.status()) return guard.status();
  const int code = cudaDeviceEnablePeerAccess(peer, 0);
  if (code == cudaErrorPeerAccessAlreadyEnabled) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  return check(code, fmt::format("let CUDA device {} reach device {}", device, peer));
}

DeviceGuard::DeviceGuard(int device) {
  const auto driver = load_driver();
  if (!driver) {
    status_ = tl::unexpected<Error>(driver.error());
    return;
  }
  CUcontext previous = nullptr;
  restore_ = (*driver)->get_current(&previous) == CUDA_SUCCESS;
  previous_ = previous;
  if (device == kAnyDevice) {
    if (previous != nullptr) return;
    const std::vector<int> active = active_devices();
    device = active.empty() ? 0 : active.front();
  }
  status_ = check(cudaSetDevice(device), fmt::format("make CUDA device {} current", device));
}

DeviceGuard::~DeviceGuard() {
  if (restore_) loaded_driver()->set_current(static_cast<CUcontext>(previous_));
}

}  // namespace p2p::cuda
