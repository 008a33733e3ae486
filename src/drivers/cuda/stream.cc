// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/stream.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/driver.h"
#include "drivers/cuda/error.h"

namespace p2p::cuda {

Result<Stream> Stream::open(int device, Priority priority) {
  const DeviceGuard guard(device);
  if (!guard.status()) return tl::unexpected<Error>(guard.status().error());
  int least = 0;
  int greatest = 0;
  cudaStream_t stream = nullptr;
  int code = cudaDeviceGetStreamPriorityRange(&least, &greatest);
  if (code == 0) {
    code = cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                        priority == Priority::kHigh ? greatest : least);
  }
  if (code != 0) {
    return tl::unexpected<Error>(error_of(code, fmt::format("make a stream on CUDA device {}", device)));
  }
  return Stream(stream, device);
}

Stream::~Stream() {
  if (handle_ == nullptr) return;
  const DeviceGuard guard(device_);
  cudaStreamDestroy(static_cast<cudaStream_t>(handle_));
}

Status Stream::copy(void* target, const void* source, std::size_t bytes) const {
  const int code =
      cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(handle_));
  if (code == 0) return {};
  return check(code, fmt::format("copy {} bytes from {} to {}", bytes, source, target));
}

Status Stream::signal(std::uint32_t* word, std::uint32_t value) const {
  const CUresult code =
      loaded_driver()->write_value(static_cast<CUstream>(handle_), reinterpret_cast<CUdeviceptr>(word), value,
                                   CU_STREAM_WRITE_VALUE_DEFAULT);
  if (code == CUDA_SUCCESS) return {};
  return fail(ErrorCode::kSystem, "write a completion word from CUDA device {}: driver error {}", device_,
              static_cast<int>(code));
}

Result<bool> Stream::idle() const {
  const DeviceGuard guard(device_);
  const int code = cudaStreamQuery(static_cast<cudaStream_t>(handle_));
  if (code == cudaSuccess) return true;
  if (code == cudaErrorNotReady) return false;
  return tl::unexpected<Error>(error_of(code, fmt::format("work of CUDA device {}", device_)));
}

Status Stream::synchronize() const {
  const DeviceGuard guard(device_);
  return check(cudaStreamSynchronize(static_cast<cudaStream_t>(handle_)),
               fmt::format("work of CUDA device {}", device_));
}

}  // namespace p2p::cuda
