// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "row.h"

namespace p2p::perf {

/// Which of the two sides' memory: each scatters its blocks in an order of its own.
enum class Side { kClient, kServer };

/// Where a row's transfers lie in one side's memory. Transfers take turns in a few slots. A slot has more
/// places than blocks and a guard behind them; what lies outside the blocks must stay zero.
class Layout {
 public:
  Layout(const Row& row, Side side);

  std::uint64_t slots() const { return slots_; }
  std::uint64_t bytes() const { return slots_ * stride_; }  ///< of all slots

  /// Offset of a block from the start of the memory.
  std::uint64_t offset(std::uint64_t slot, std::uint64_t block) const {
    return slot * stride_ + places_[block] * size_;
  }

  /// Zeroes all, then writes the pattern of `seed` into the blocks of every slot.
  void fill(std::span<std::byte> memory, std::uint64_t seed) const;

  /// A sentence about the first byte that is not as it must be: the pattern in the blocks of the first
  /// `used_slots` slots, zero everywhere else.
  std::optional<std::string> find_fault(std::span<const std::byte> memory, std::uint64_t seed,
                                        std::uint64_t used_slots) const;

 private:
  std::optional<std::string> find_fault_in_blocks(std::span<const std::byte> memory, std::uint64_t seed,
                                                  std::uint64_t used_slots) const;
  std::optional<std::string> find_fault_outside(std::span<const std::byte> memory,
                                                std::uint64_t used_slots) const;

  std::uint64_t size_;
  std::uint64_t slots_;
  std::uint64_t stride_;
  std::uint64_t place_count_;
  std::vector<std::uint64_t> places_;  // of the blocks, in the order of the list
};

}  // namespace p2p::perf
