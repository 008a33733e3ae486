// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/memory.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/error.h"
#include "drivers/cuda/place.h"

namespace p2p::cuda {

Result<HostBuffer> HostBuffer::allocate(std::size_t bytes) {
  if (const Status status = available(); !status) return tl::unexpected<Error>(status.error());
  const DeviceGuard guard(kAnyDevice);
  if (!guard.status()) return tl::unexpected<Error>(guard.status().error());
  void* data = nullptr;
  if (const int code = cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped); code != 0) {
    return tl::unexpected<Error>(error_of(code, fmt::format("allocate {} bytes of pinned memory", bytes)));
  }
  return HostBuffer(static_cast<std::byte*>(data), bytes);
}

HostBuffer::~HostBuffer() {
  if (data_ == nullptr) return;
  const DeviceGuard guard(kAnyDevice);
  cudaFreeHost(data_);
}

Result<HostPin> HostPin::pin(std::byte* data, std::size_t bytes) {
  if (const Status status = available(); !status) return tl::unexpected<Error>(status.error());
  if (pinned(data, bytes)) return HostPin();
  const DeviceGuard guard(kAnyDevice);
  if (!guard.status()) return tl::unexpected<Error>(guard.status().error());
  const int code = cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (code != 0) {
    return tl::unexpected<Error>(
        error_of(code, fmt::format("pin {} bytes at {}", bytes, static_cast<void*>(data))));
  }
  return HostPin(data);
}

HostPin::~HostPin() {
  if (data_ == nullptr) return;
  const DeviceGuard guard(kAnyDevice);
  cudaHostUnregister(data_);
}

Result<DeviceBuffer> DeviceBuffer::allocate(int device, std::size_t bytes, bool zero) {
  const DeviceGuard guard(device);
  if (!guard.status()) return tl::unexpected<Error>(guard.status().error());
  void* data = nullptr;
  if (const int code = cudaMalloc(&data, bytes); code != 0) {
    return tl::unexpected<Error>(
        error_of(code, fmt::format("allocate {} bytes on CUDA device {}", bytes, device)));
  }
  DeviceBuffer buffer(static_cast<std::byte*>(data), bytes, device);
  if (!zero) return buffer;
  int code = cudaMemsetAsync(data, 0, bytes, cudaStreamPerThread);
  if (code == 0) code = cudaStreamSynchronize(cudaStreamPerThread);
  if (code != 0) return tl::unexpected<Error>(error_of(code, "clear device memory"));
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  const DeviceGuard guard(device_);
  cudaFree(data_);
}

Status copy_now(void* target, const void* source, std::size_t bytes) {
  const auto from = place_of(source);
  const auto to = place_of(target);
  if (!from) return tl::unexpected<Error>(from.error());
  if (!to) return tl::unexpected<Error>(to.error());
  const int device = from->kind == MemoryKind::kCuda ? from->device : to->device;
  const DeviceGuard guard(device < 0 ? kAnyDevice : device);
  if (!guard.status()) return guard.status();
  int code = cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, cudaStreamPerThread);
  if (code == 0) code = cudaStreamSynchronize(cudaStreamPerThread);
  return check(code, fmt::format("copy {} bytes from {} to {}", bytes, source, target));
}

}  // namespace p2p::cuda
