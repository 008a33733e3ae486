// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "layout.h"

#include <gmock/gmock.h>

#include <algorithm>

namespace p2p::perf {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

Row row_of(std::uint64_t size, std::uint64_t blocks, std::uint64_t depth) {
  Row row;
  row.size = size;
  row.blocks = blocks;
  row.depth = depth;
  row.seed = 11;
  return row;
}

TEST(Layout, BlocksLieApartAndInside) {
  const Row row = row_of(100, 50, 3);
  for (const Side side : {Side::kClient, Side::kServer}) {
    const Layout layout(row, side);
    std::vector<std::uint64_t> offsets;
    for (std::uint64_t slot = 0; slot < layout.slots(); ++slot) {
      for (std::uint64_t block = 0; block < row.blocks; ++block)
        offsets.push_back(layout.offset(slot, block));
    }
    EXPECT_FALSE(std::is_sorted(offsets.begin(), offsets.end()));
    std::sort(offsets.begin(), offsets.end());
    for (std::size_t i = 1; i < offsets.size(); ++i) EXPECT_GE(offsets[i], offsets[i - 1] + row.size);
    EXPECT_LE(offsets.back() + row.size, layout.bytes());
    EXPECT_EQ(offsets.size(), 150u);
  }
}

TEST(Layout, SidesScatterDifferently) {
  const Row row = row_of(64, 100, 1);
  const Layout client(row, Side::kClient);
  const Layout server(row, Side::kServer);
  bool differ = false;
  for (std::uint64_t block = 0; block < row.blocks; ++block) {
    differ = differ || client.offset(0, block) != server.offset(0, block);
  }
  EXPECT_TRUE(differ);
}

TEST(Layout, LargeTransfersShareSlots) {
  EXPECT_EQ(Layout(row_of(4096, 1, 32), Side::kClient).slots(), 32u);
  EXPECT_EQ(Layout(row_of(std::uint64_t{64} << 20, 1, 32), Side::kClient).slots(), 4u);
  EXPECT_EQ(Layout(row_of(std::uint64_t{1} << 30, 1, 32), Side::kClient).slots(), 1u);
}

TEST(Layout, FindsEveryKindOfFault) {
  const Row row = row_of(100, 10, 2);
  const Layout layout(row, Side::kServer);
  std::vector<std::byte> memory(layout.bytes());
  layout.fill(memory, 3);
  EXPECT_EQ(layout.find_fault(memory, 3, 2), std::nullopt);
  EXPECT_THAT(layout.find_fault(memory, 4, 2), Optional(HasSubstr("byte 0 of block 0 of slot 0 is wrong")));

  auto wrong = memory;
  wrong[layout.offset(1, 4) + 99] ^= std::byte{1};
  EXPECT_THAT(layout.find_fault(wrong, 3, 2), Optional(HasSubstr("byte 99 of block 4 of slot 1 is wrong")));

  auto missing = memory;
  std::fill_n(missing.begin() + static_cast<std::ptrdiff_t>(layout.offset(0, 7)), 100, std::byte{});
  EXPECT_THAT(layout.find_fault(missing, 3, 2), Optional(HasSubstr("nothing of the block has come")));

  auto stray = memory;
  stray.back() = std::byte{1};
  EXPECT_THAT(layout.find_fault(stray, 3, 2), Optional(HasSubstr("belongs to no block")));

  // A slot that nothing was sent to must be clear.
  EXPECT_THAT(layout.find_fault(memory, 3, 1), Optional(HasSubstr("of slot 1 was touched")));
}

}  // namespace
}  // namespace p2p::perf
