// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace p2p::chaos {

struct Operation;

/// A part of an arena that one operation at a time has. The bytes around it are nobody's.
struct Cell {
  std::size_t side = 0;    ///< whose arena
  std::size_t region = 0;  ///< of that side
  std::size_t offset = 0;  ///< in the arena
  std::size_t size = 0;
  Operation* user = nullptr;
  std::shared_ptr<const Operation> last;  ///< whose target it was before, for what is said of a wrong byte
};

/// A piece of one: where it lies in each of the two cells.
struct Block {
  std::size_t local = 0;
  std::size_t remote = 0;
  std::size_t size = 0;
};

/// One operation as the world knows it, from its start until no byte of it can move any more.
struct Operation {
  enum class Kind { kWrite, kRead, kSend, kRecv };

  Kind kind = Kind::kWrite;
  std::size_t side = 0;  ///< who called
  std::size_t connection = 0;
  std::size_t slot = 0;  ///< on the caller's board
  std::uint64_t number = 0;
  Cell* local = nullptr;
  Cell* remote = nullptr;  ///< none for messages, nor once its owner was told that it is free
  std::vector<Block> blocks;
  std::string strided{};  ///< how both sides lie, as words of a command; empty: by the blocks
  bool verifies = false;
  std::vector<std::byte> then;  ///< what its target holds in the end, block after block
  bool notifies = false;        ///< the peer hears its number
  bool cancelled = false;       ///< one of the pair, of a message
  bool region_leaves = false;   ///< one that it uses was taken back meanwhile
  bool region_gone = false;     ///< ... before it began
  bool bad = false;             ///< it meets memory that cannot be read or written
  bool changed = false;         ///< memory of it turned bad or good meanwhile
  std::chrono::steady_clock::time_point start;
  std::chrono::steady_clock::time_point cancel_at;  ///< zero: never, or it was asked for

  bool is_message() const { return kind == Kind::kSend || kind == Kind::kRecv; }

  /// The programs copy such a message themselves: its memory has to be good (docs/errors.md).
  bool is_short() const {
    std::size_t bytes = 0;
    for (const Block& block : blocks) bytes += block.size;
    return is_message() && bytes <= std::size_t{16} << 10;
  }

  const char* name() const {
    constexpr std::array kNames{"write", "read", "send", "recv"};
    return kNames.at(static_cast<std::size_t>(kind));
  }

  /// Where its region is taken back in the middle of an answer, or its source cannot be read.
  bool may_end_in_zeros() const { return bad || changed || (kind == Kind::kRead && region_leaves); }

  /// Null if it has none, or none any more.
  Cell* target() const {
    if (kind == Kind::kSend) return nullptr;
    return kind == Kind::kWrite ? remote : local;
  }

  std::size_t offset_in_target(const Block& block) const {
    return kind == Kind::kWrite ? block.remote : block.local;
  }
};

}  // namespace p2p::chaos
