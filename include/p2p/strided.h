// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "p2p/memory.h"

namespace p2p {

/// How bytes lie that are not side by side: rows of blocks. They are in the order of the blocks, row by row.
struct Strides {
  std::uint64_t block = 0;      ///< bytes of a block
  std::uint64_t count = 1;      ///< blocks of a row
  std::int64_t stride = 0;      ///< bytes from the start of a block to that of the next one in its row
  std::uint64_t rows = 1;       ///< how many
  std::int64_t row_stride = 0;  ///< bytes from the start of a row to that of the next one

  /// Of both sides of one transfer together.
  static constexpr std::uint64_t kMostBlocks = std::uint64_t{1} << 22;
};

/// Bytes of my registered memory; `data` is where the first block begins.
struct LocalStrided {
  RegionId region{};
  std::byte* data = nullptr;
  Strides strides{};
};

/// Bytes of a peer's region; `address` is where the first block begins, in the peer's address space.
struct RemoteStrided {
  RemoteRegionId region{};
  std::uint64_t address = 0;
  Strides strides{};
};

}  // namespace p2p
