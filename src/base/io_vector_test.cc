// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/io_vector.h"

#include <gtest/gtest.h>

#include <array>

namespace p2p {
namespace {

class IoVector : public ::testing::Test {
 protected:
  std::array<std::byte, 100> bytes_{};
  std::byte* at(std::size_t offset) { return bytes_.data() + offset; }
};

TEST_F(IoVector, NeighboursBecomeOneRun) {
  std::vector<iovec> list;
  append_run(list, at(0), 10);
  append_run(list, at(10), 5);
  append_run(list, at(20), 5);
  append_run(list, at(19), 1);
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(list[0].iov_len, 15U);
  EXPECT_EQ(total_bytes(list), 21U);
}

TEST_F(IoVector, CutsWithinAndAtTheEdgesOfEntries) {
  for (std::size_t cut = 0; cut <= 30; ++cut) {
    std::vector<iovec> list{{at(0), 10}, {at(20), 5}, {at(40), 15}};
    const std::size_t used = cut_front(list, cut);
    EXPECT_EQ(used, cut < 10 ? 0U : cut < 15 ? 1U : cut < 30 ? 2U : 3U) << cut;
    EXPECT_EQ(total_bytes(std::span(list).subspan(used)), 30 - cut);
    if (used == 2) {
      EXPECT_EQ(list[2].iov_base, at(40 + cut - 15));
    }
  }
}

TEST_F(IoVector, EmptyEntriesAtTheFrontAreUsedUp) {
  std::vector<iovec> list{{at(0), 0}, {at(20), 5}};
  EXPECT_EQ(cut_front(list, 0), 1U);
  EXPECT_EQ(cut_front(list, 5), 2U);
}

}  // namespace
}  // namespace p2p
