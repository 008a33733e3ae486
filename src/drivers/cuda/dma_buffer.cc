// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/dma_buffer.h"

#include <unistd.h>

#include "base/error.h"
#include "drivers/cuda/driver.h"

namespace p2p::cuda {

Result<DmaBuffer> DmaBuffer::open(const std::byte* data, std::size_t bytes) {
  const Driver* driver = loaded_driver();
  if (driver == nullptr || driver->handle_for_range == nullptr) {
    return fail(ErrorCode::kUnavailable, "the CUDA driver exports no DMA-BUF");
  }
  // The driver takes whole pages of the host's size.
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uint64_t>(data);
  const std::uint64_t first = address / page * page;
  const std::uint64_t size = (address - first + bytes + page - 1) / page * page;
  int fd = -1;
  const CUresult code = driver->handle_for_range(&fd, first, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (code != CUDA_SUCCESS) {
    return fail(ErrorCode::kUnavailable, "export {} bytes at {:#x} as a DMA-BUF: CUDA driver error {}", bytes,
                address, static_cast<int>(code));
  }
  return DmaBuffer(UniqueFd(fd), address - first);
}

}  // namespace p2p::cuda
