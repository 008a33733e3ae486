// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "transport/tcp/stream/frame.h"

namespace p2p::tcp {

/// A run of bytes in the memory of the side that gets the frame.
struct RemoteRange {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  friend bool operator==(const RemoteRange&, const RemoteRange&) = default;
};

/// Small distances either way become small numbers: 0, -1, 1, -2 ... to 0, 1, 2, 3 ...
inline std::uint64_t zigzag(std::uint64_t distance) {
  return (distance << 1) ^ (std::uint64_t{0} - (distance >> 63));
}
inline std::uint64_t unzigzag(std::uint64_t value) { return (value >> 1) ^ (std::uint64_t{0} - (value & 1)); }

/// Ranges at two levels of strides: rows of blocks that are equally long and equally far apart, of which a
/// batch may begin within a row and within a block, and end within a block. Strides are of two's complement.
struct StridedRanges {
  std::uint64_t address = 0;  ///< where the first block would begin if it were whole
  std::uint64_t block = 0;    ///< bytes of a whole one
  std::uint64_t stride = 0;   ///< from a block to the next one of its row
  std::uint64_t row = 0;      ///< blocks of a row
  std::uint64_t jump = 0;   ///< from the last block of a row to the first one of the next; 0 if there is none
  std::uint64_t begin = 0;  ///< place of the first block in its row
  std::uint64_t skip = 0;   ///< bytes that the first block lacks at its start
  std::uint64_t cut = 0;    ///< bytes that the last block lacks at its end

  /// The ranges as strides, if they are such; a few ranges are left to the other forms.
  static std::optional<StridedRanges> of(std::span<const RemoteRange> ranges);

  /// At most 41 bytes.
  void encode(Bytes& out) const;

  /// Nothing unless all fields make sense for `count` ranges, which `of` would describe like this: no block
  /// reaches into the next one or beyond the end of the address space.
  static std::optional<StridedRanges> decode(ByteReader& reader, std::uint64_t count);

  /// Calls `take(address, size)`, which may answer false to stop, for each of `count` ranges. False if it
  /// did, or for a range beyond either end of the address space.
  template <class Take>
  bool for_each(std::uint64_t count, Take&& take) const;
};

template <class Take>
bool StridedRanges::for_each(std::uint64_t count, Take&& take) const {
  std::uint64_t at = address;
  std::uint64_t place = begin;
  for (std::uint64_t i = 0;;) {
    const std::uint64_t start = at + (i == 0 ? skip : 0);
    const std::uint64_t end = at + block - (i + 1 == count ? cut : 0);
    if (end <= start || !take(start, end - start)) return false;
    if (++i == count) return true;
    const bool last = ++place == row;
    if (last) place = 0;
    const std::uint64_t step = last ? jump : stride;
    const std::uint64_t next = at + step;
    const bool down = step >> 63 != 0;
    if (down != (next < at)) return false;
    at = next;
  }
}

}  // namespace p2p::tcp
