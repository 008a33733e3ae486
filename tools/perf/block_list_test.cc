// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "block_list.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>

namespace p2p::perf {
namespace {

TEST(BlockList, HasEveryBlockOnceInTwoOrders) {
  const auto one = shuffled_blocks(4096, 100, 16, 1);
  const auto other = shuffled_blocks(4096, 100, 16, 2);
  std::set<std::uintptr_t> seen;
  bool differs = false;
  for (std::size_t i = 0; i != one.size(); ++i) {
    seen.insert(reinterpret_cast<std::uintptr_t>(one[i].iov_base));
    EXPECT_EQ(one[i].iov_len, 16);
    differs = differs || one[i].iov_base != other[i].iov_base;
  }
  EXPECT_EQ(seen.size(), 100);
  EXPECT_EQ(*seen.begin(), 4096);
  EXPECT_EQ(*seen.rbegin(), 4096 + 99 * 16);
  EXPECT_TRUE(differs);
}

TEST(BlockRing, GoesOnInTheMiddleOfABlockAndRoundItsEnd) {
  std::array<std::byte, 30> memory{};
  const auto at = [&](std::size_t offset) { return static_cast<void*>(memory.data() + offset); };
  BlockRing ring({{at(0), 10}, {at(20), 10}, {at(10), 10}}, 2);
  ring.advance(13);
  auto window = ring.next();
  ASSERT_EQ(window.size(), 2);
  EXPECT_EQ(window[0].iov_base, at(23));
  EXPECT_EQ(window[0].iov_len, 7);
  EXPECT_EQ(window[1].iov_base, at(10));
  ring.advance(17);
  window = ring.next();
  EXPECT_EQ(window[0].iov_base, at(0));
  EXPECT_EQ(window[0].iov_len, 10);
  EXPECT_EQ(window[1].iov_base, at(20));
}

}  // namespace
}  // namespace p2p::perf
