// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "p2p/memory.h"
#include "p2p/result.h"

namespace p2p::cuda {

/// Where the memory at `pointer` lives: a CUDA device, or the host for all that CUDA does not know, pinned
/// and managed memory included. Never loads the driver and makes no context. kSystem if the driver cannot
/// tell.
Result<MemoryPlace> place_of(const void* pointer);

/// The PCI address of a device as the system writes it: "0000:3b:00.0".
Result<std::string> bus_id_of(int device);

/// The device allocation around a pointer.
struct Allocation {
  std::byte* base = nullptr;
  std::uint64_t size = 0;  ///< bytes
  std::uint64_t buffer_id =
      0;  ///< another one for every allocation of this process, also at the same address
  std::uint64_t memory_id = 0;  ///< of `mapped`, the physical memory's at the pointer; 0: the driver has none
  int device = -1;

  /// cudaIpcGetMemHandle takes it: it is neither `pooled` nor `mapped`.
  bool shareable = false;
  bool pooled = false;  ///< from a pool (cudaMallocAsync)

  /// With cuMemMap (PyTorch's expandable segments): base and size are those of the reserved addresses, with
  /// one memory or several behind parts of them.
  bool mapped = false;
};

/// kNotFound if `pointer` is no device memory (any more).
Result<Allocation> allocation_of(const void* pointer);

/// Whether all of a range is memory of the allocation around its first byte, which is not `mapped`.
/// kUnavailable otherwise.
Status check_range(const Allocation& allocation, const std::byte* data, std::uint64_t size);

/// True while `pointer` is the memory that it was when `allocation_of` told what it is.
bool is_there(const Allocation& allocation, const void* pointer);

/// The allocation's id alone, at a fraction of the cost; 0 if `pointer` is no CUDA memory (any more).
std::uint64_t buffer_id_of(const void* pointer);

/// That of the physical memory alone; 0 where the driver knows none.
std::uint64_t memory_id_of(const void* pointer);

/// True if the `bytes` of host memory at `pointer` are pinned as one range, so that kernels may use them in
/// place.
bool pinned(const void* pointer, std::size_t bytes);

}  // namespace p2p::cuda
