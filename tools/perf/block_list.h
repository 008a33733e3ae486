// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace p2p::perf {

/// `count` blocks of `size` bytes, side by side from `address` on, in an order that `seed` chooses.
std::vector<iovec> shuffled_blocks(std::uint64_t address, std::size_t count, std::size_t size,
                                   std::uint64_t seed);

/// Goes round a list of blocks for ever, as calls with vectors do that may stop in the middle of a block.
class BlockRing {
 public:
  /// `a_call`: the most blocks that `next` answers.
  BlockRing(std::vector<iovec> blocks, std::size_t a_call);

  /// What the next call is to be given; valid until the next call of `next`.
  std::span<iovec> next();

  /// So many bytes were moved.
  void advance(std::size_t bytes);

 private:
  std::vector<iovec> blocks_;
  std::vector<iovec> window_;
  std::size_t at_ = 0;
  std::size_t offset_ = 0;  // within block `at_`
};

}  // namespace p2p::perf
