// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/unique_fd.h"
#include "drivers/cuda/place.h"
#include "p2p/result.h"

namespace p2p::cuda {

/// One physical memory where cuMemMap put it, all of it. What PyTorch's expandable segments, cumem allocators
/// and ncclMemAlloc give out lies on one of them or on several side by side.
struct Chunk {
  std::byte* base = nullptr;
  std::uint64_t size = 0;       ///< bytes
  std::uint64_t memory_id = 0;  ///< the physical memory's; another one once something else is mapped here
  bool exportable = false;      ///< was made with a handle type that other processes can be given
};

/// The chunks that hold the range, in order. kUnavailable if some of it is not mapped or not on the device of
/// `allocation`, which is the one around `data`. Takes about a microsecond a chunk.
Result<std::vector<Chunk>> chunks_of(const Allocation& allocation, const std::byte* data, std::uint64_t size);

/// True while the same memory is mapped there.
bool is_there(const Chunk& chunk);

/// What another process makes the memory its own with (Window::add). Each one keeps the memory from the GPU
/// until it is closed, whatever its owner does. kNotFound if something else is mapped there now.
Result<UniqueFd> export_chunk(const Chunk& chunk);

/// New memory of `device`, for Window::add here and in other processes: it is there while somebody has it
/// mapped or a descriptor of it. Makes no context there. `size` is a multiple of 2 MiB.
Result<UniqueFd> make_chunk(int device, std::uint64_t size);

}  // namespace p2p::cuda
