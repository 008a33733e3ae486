// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tables.h"

namespace p2p::weights {

/// Positions of a delta count units of so many bytes, the first of which begins `shift` bytes before the
/// chunk. Any grid is lossless; that of the chunk's elements costs least.
struct Grid {
  std::uint8_t unit = 1;   ///< 1, 2, 4 or 8
  std::uint8_t shift = 0;  ///< less than `unit`
};

/// For each chunk that of the tensor which has the most bytes of it.
std::vector<Grid> grids_of(const Demand& demand);

/// The most bytes of the delta of a chunk: it is sent whole where that saves less than half.
constexpr std::uint64_t most_of_delta(std::uint64_t chunk) { return std::max<std::uint64_t>(chunk / 2, 2); }

/// What of a chunk differs from its bytes in another version, the base, of equal size: the grid, then for
/// each unit that differs the number of equal ones before it, in one byte (below 224), two (below 8160) or
/// five, and its new bytes. Empty where that is more than `most` bytes.
std::optional<std::string> encode_delta(std::span<const std::byte> base, std::span<const std::byte> fresh,
                                        Grid grid, std::size_t most);

/// Makes the chunk of the base's bytes. False: a peer's delta is none of a chunk of this size; the bytes are
/// of no version then.
bool apply_delta(std::string_view delta, std::span<std::byte> chunk);

}  // namespace p2p::weights
