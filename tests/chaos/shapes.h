// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "dice.h"
#include "operation.h"
#include "p2p/strided.h"

namespace p2p::chaos {

/// Strided memory of a cell.
struct Shape {
  std::size_t start = 0;  ///< of the first block, in the cell
  Strides strides{};

  /// Where a byte lies in the cell.
  std::size_t place(std::size_t byte) const;

  /// As words of a worker's command, for a cell that begins there in its region.
  std::string words(std::size_t cell) const;
};

/// The same bytes at both sides of an operation.
struct Shapes {
  Shape local;
  Shape remote;

  /// In cells of so many bytes.
  static Shapes any(Dice& dice, std::size_t cell);

  /// The runs that are contiguous at both sides.
  std::vector<Block> blocks() const;
};

}  // namespace p2p::chaos
