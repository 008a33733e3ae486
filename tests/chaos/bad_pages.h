// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "operation.h"
#include "support/memory.h"

namespace p2p::chaos {

/// Pages of an arena that are bad in its worker. The world's own mapping of them stays whole.
struct BadPages {
  std::size_t side = 0;
  std::size_t from = 0;  ///< in the arena
  std::size_t to = 0;
  testing::Bad how{};
};

/// Which pages are bad now, and what they do to operations.
class BadMemory {
 public:
  const std::vector<BadPages>& all() const { return all_; }
  void add(const BadPages& pages) { all_.push_back(pages); }

  /// Those of one worker are good again.
  void clear(std::size_t side) {
    std::erase_if(all_, [side](const BadPages& one) { return one.side == side; });
  }

  /// A side of an operation cannot do what it has to with its memory. Of a message the other one is another
  /// operation.
  bool spoils(const Operation& operation) const {
    return std::any_of(all_.begin(), all_.end(), [&](const BadPages& one) { return stops(one, operation); });
  }

  static bool stops(const BadPages& pages, const Operation& operation) {
    return std::any_of(operation.blocks.begin(), operation.blocks.end(), [&](const Block& block) {
      const bool local_is_target =
          operation.kind == Operation::Kind::kRead || operation.kind == Operation::Kind::kRecv;
      return stops(pages, operation.local, block.local, block.size, local_is_target) ||
             stops(pages, operation.remote, block.remote, block.size, !local_is_target);
    });
  }

  /// A block of `cell` meets them. A read-only page stops only what writes.
  static bool stops(const BadPages& pages, const Cell* cell, std::size_t offset, std::size_t size,
                    bool written) {
    if (cell == nullptr || cell->side != pages.side) return false;
    if (!written && pages.how == testing::Bad::kReadOnly) return false;
    const std::size_t at = cell->offset + offset;
    return at < pages.to && pages.from < at + size;
  }

 private:
  std::vector<BadPages> all_;
};

}  // namespace p2p::chaos
