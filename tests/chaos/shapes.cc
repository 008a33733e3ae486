// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace p2p::chaos {
namespace {

std::size_t bytes_of(const Strides& strides) { return strides.block * strides.count * strides.rows; }

/// A divisor.
std::uint64_t any_part(Dice& dice, std::uint64_t of) {
  std::uint64_t part = dice.between(1, of);
  while (of % part != 0) --part;
  return part;
}

/// `units` of `unit` bytes in rows of blocks, each way up or down, somewhere in the cell. At most three times
/// as long as its bytes.
Shape any_shape(Dice& dice, std::uint64_t unit, std::uint64_t units, std::size_t cell) {
  const std::uint64_t together = any_part(dice, units);
  Strides strides{.block = unit * together};
  strides.count = any_part(dice, units / together);
  strides.rows = units / together / strides.count;
  const std::uint64_t stride = strides.block + (dice.one_in(2) ? 0 : dice.up_to(strides.block));
  const std::uint64_t row_stride = stride * strides.count + (dice.one_in(2) ? 0 : dice.up_to(strides.block));
  Shape shape;
  shape.start = dice.between(0, cell - row_stride * strides.rows);
  const bool down = dice.one_in(4);
  const bool rows_down = dice.one_in(4);
  if (down) shape.start += stride * (strides.count - 1);
  if (rows_down) shape.start += row_stride * (strides.rows - 1);
  strides.stride = down ? -static_cast<std::int64_t>(stride) : static_cast<std::int64_t>(stride);
  strides.row_stride =
      rows_down ? -static_cast<std::int64_t>(row_stride) : static_cast<std::int64_t>(row_stride);
  shape.strides = strides;
  return shape;
}

}  // namespace

std::size_t Shape::place(std::size_t byte) const {
  const std::size_t block = byte / strides.block;
  return start + block / strides.count * static_cast<std::size_t>(strides.row_stride) +
         block % strides.count * static_cast<std::size_t>(strides.stride) + byte % strides.block;
}

std::string Shape::words(std::size_t cell) const {
  return fmt::format(" {} {} {} {} {} {}", cell + start, strides.block, strides.count,
                     static_cast<std::uint64_t>(strides.stride), strides.rows,
                     static_cast<std::uint64_t>(strides.row_stride));
}

Shapes Shapes::any(Dice& dice, std::size_t cell) {
  constexpr std::array<std::uint64_t, 5> kUnits{1, 12, 36, 60, 96};
  const std::uint64_t units = kUnits[dice.between(0, kUnits.size() - 1)];
  const std::uint64_t unit = dice.up_to(cell / 3 / units);
  return {any_shape(dice, unit, units, cell), any_shape(dice, unit, units, cell)};
}

std::vector<Block> Shapes::blocks() const {
  std::vector<Block> blocks;
  const std::size_t bytes = bytes_of(local.strides);
  for (std::size_t at = 0; at != bytes;) {
    const std::size_t here = local.strides.block - at % local.strides.block;
    const std::size_t size = std::min(here, remote.strides.block - at % remote.strides.block);
    blocks.push_back({local.place(at), remote.place(at), size});
    at += size;
  }
  return blocks;
}

}  // namespace p2p::chaos
