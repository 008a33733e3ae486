// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "board.h"
#include "operation.h"

namespace p2p::chaos {

/// The model of one worker's memory: what every byte has to be. Throws std::runtime_error where one is not.
/// Cells have guards between them, which no transfer may touch.
class Arena {
 public:
  static constexpr std::size_t kRegions = 4;

  Arena(std::string name, std::size_t side, Board& board);

  std::vector<Cell>& cells() { return cells_; }
  std::size_t region_offset(std::size_t region) const { return region * kRegionBytes; }
  static constexpr std::size_t region_size() { return kRegionBytes; }

  /// Other bytes than before, at once.
  void refill(const Cell& cell);

  /// What the target of an operation will hold if its source is here.
  std::vector<std::byte> gather(const Operation& operation) const;

  /// The operation was done: all is as it should be.
  void expect_landed(const Operation& operation);

  /// It failed or is under way: each byte is as before or as it was to be. What is there stays from now on.
  void expect_either(const Operation& operation);

  /// All bytes. Where an operation is at work either of its two is right.
  void expect_all();

 private:
  static constexpr std::size_t kRegionBytes = Board::kArenaBytes / kRegions;

  void add_cells(std::size_t region);
  void expect_same(std::size_t from, std::size_t to, const std::string& what) const;
  void expect_around(const Operation& operation) const;
  void check_either(const Operation& operation, bool landed) const;
  [[noreturn]] void wrong(std::size_t at, const std::string& what) const;

  const std::string name_;
  const std::size_t side_;
  const std::span<std::byte> bytes_;
  std::vector<std::byte> now_;
  std::vector<Cell> cells_;  // by offset
  std::uint64_t seed_ = 0;   // of the next refill
};

}  // namespace p2p::chaos
