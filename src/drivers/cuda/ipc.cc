// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/ipc.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "base/error.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/error.h"

namespace p2p::cuda {

static_assert(sizeof(IpcHandle) == sizeof(cudaIpcMemHandle_t));

std::string_view why_private(const Allocation& allocation) {
  if (allocation.shareable) return "";
  return allocation.pooled ? "comes from a CUDA memory pool (cudaMallocAsync; allocate it with cudaMalloc)"
                           : "was mapped with cuMemMap (PyTorch: expandable_segments)";
}

Result<IpcHandle> ipc_handle_of(const void* pointer) {
  const auto allocation = allocation_of(pointer);
  if (!allocation) return tl::unexpected<Error>(allocation.error());
  if (!allocation->shareable) {
    return fail(ErrorCode::kUnavailable, "its memory cannot be shared between processes: it {}",
                why_private(*allocation));
  }
  const DeviceGuard guard(allocation->device);
  if (!guard.status()) return tl::unexpected<Error>(guard.status().error());
  cudaIpcMemHandle_t raw{};
  if (const int code = cudaIpcGetMemHandle(&raw, allocation->base); code != 0) {
    return tl::unexpected<Error>(error_of(code, fmt::format("get the IPC handle of {}", pointer)));
  }
  IpcHandle handle{};
  std::memcpy(handle.data(), &raw, sizeof raw);
  return handle;
}

Result<IpcMapping> IpcMapping::open(const IpcHandle& handle, int device) {
  const DeviceGuard guard(device);
  if (!guard.status()) return tl::unexpected<Error>(guard.status().error());
  cudaIpcMemHandle_t raw{};
  std::memcpy(&raw, handle.data(), sizeof raw);
  void* data = nullptr;
  if (const int code = cudaIpcOpenMemHandle(&data, raw, cudaIpcMemLazyEnablePeerAccess); code != 0) {
    return tl::unexpected<Error>(
        error_of(code, fmt::format("open a peer's device memory on CUDA device {}", device)));
  }
  return IpcMapping(static_cast<std::byte*>(data), device);
}

IpcMapping::~IpcMapping() {
  if (data_ == nullptr) return;
  const DeviceGuard guard(device_);
  cudaIpcCloseMemHandle(data_);
}

}  // namespace p2p::cuda
