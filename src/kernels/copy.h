// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/block.h"

namespace p2p::kernels {

/// Blocks of one launch. Their order means nothing and targets do not overlap.
struct CopyList {
  /// Read by the host where there are at most kInlineBlocks, else by the device: then they lie in pinned or
  /// device memory and stay until the end.
  const CopyBlock* blocks = nullptr;
  std::size_t count = 0;
  std::uint64_t total = 0;    ///< bytes of all blocks
  std::uint64_t largest = 0;  ///< bytes of the largest one
};

/// Limits of one launch's appetite.
struct Grid {
  unsigned ctas = 0;  ///< thread blocks of 512 at most; 0: as many as the bytes are worth
};

/// Copies all blocks on `stream` (cudaStream_t) of the current device. Returns the CUDA runtime's code, 0
/// when launched; failures while running are the stream's.
int launch_copy(const CopyList& list, const Grid& grid, const Signal& signal, void* stream);

/// The same for rows of blocks.
int launch_copy(const CopyRows& rows, const Grid& grid, const Signal& signal, void* stream);

/// How the work of a list is dealt out.
struct CopyShape {
  unsigned ctas = 1;
  std::uint64_t split = 1;  ///< warps that share one block
};

/// The choice that `launch_copy` makes on a device of `processors` multiprocessors.
CopyShape shape_of(const CopyList& list, const Grid& grid, unsigned processors);

/// What `launch_copy` does, on the processor; the reference that it is tested against.
void copy_on_host(std::span<const CopyBlock> blocks);

}  // namespace p2p::kernels
