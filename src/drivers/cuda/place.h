// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "p2p/memory.h"
#include "p2p/result.h"

namespace p2p::cuda {

/// Where the memory at `pointer` lives: a CUDA device, or the host for all that CUDA does not know, pinned
/// and managed memory included. Never loads the driver and makes no context. kSystem if the driver cannot
/// tell.
Result<MemoryPlace> place_of(const void* pointer);

/// The device allocation around a pointer.
struct Allocation {
  std::byte* base = nullptr;
  std::uint64_t size = 0;  ///< bytes
  std::uint64_t buffer_id =
      0;  ///< another one for every allocation of this process, also at the same address
  int device = -1;

  /// False for memory that cudaIpcGetMemHandle refuses: mapped with cuMemMap (PyTorch's expandable segments)
  /// or taken from a pool (cudaMallocAsync).
  bool shareable = false;
  bool pooled = false;
};

/// kNotFound if `pointer` is no device memory (any more).
Result<Allocation> allocation_of(const void* pointer);

/// The allocation's id alone, at a fraction of the cost; 0 if `pointer` is no CUDA memory (any more).
std::uint64_t buffer_id_of(const void* pointer);

/// True if the `bytes` of host memory at `pointer` are pinned as one range, so that kernels may use them in
/// place.
bool pinned(const void* pointer, std::size_t bytes);

}  // namespace p2p::cuda
