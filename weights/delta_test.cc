// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "delta.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace p2p::weights {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::mt19937_64& dice, std::size_t size) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(dice());
  return bytes;
}

/// With about one of `every` units of so many bytes drawn anew, which changes them; says how many.
std::size_t change(std::mt19937_64& dice, Bytes& bytes, std::size_t unit, std::size_t every) {
  std::size_t changed = 0;
  for (std::size_t at = 0; at + unit <= bytes.size(); at += unit) {
    if (dice() % every != 0) continue;
    bytes[at] ^= static_cast<std::byte>(1 + dice() % 255);
    for (std::size_t i = 1; i < unit; ++i) bytes[at + i] = static_cast<std::byte>(dice());
    ++changed;
  }
  return changed;
}

TEST(Delta, MakesTheChunkOfItsBaseOnAnyGrid) {
  std::mt19937_64 dice(1);
  for (int round = 0; round < 500; ++round) {
    const Bytes base = random_bytes(dice, 1 + dice() % 3000);
    Bytes fresh = base, made = base;
    change(dice, fresh, 1 + dice() % 9, 1 + dice() % (round % 2 == 0 ? 30 : 3000));
    const auto unit = static_cast<std::uint8_t>(1U << dice() % 4);
    const Grid grid{unit, static_cast<std::uint8_t>(dice() % unit)};
    const auto delta = encode_delta(base, fresh, grid, 1 << 20);
    ASSERT_TRUE(delta && apply_delta(*delta, made)) << round;
    EXPECT_EQ(made, fresh) << round;
  }
}

TEST(Delta, GapsOfAnySizeAreReadAsWritten) {
  for (const std::size_t gap : {0, 1, 223, 224, 225, 479, 480, 8159, 8160, 8161, 70000}) {
    Bytes base(gap + 2), fresh = base, made = base;
    fresh[gap] = std::byte{5};
    const auto delta = encode_delta(base, fresh, {}, 100);
    ASSERT_TRUE(delta && apply_delta(*delta, made)) << gap;
    EXPECT_EQ(made, fresh) << gap;
    EXPECT_EQ(delta->size(), gap < 224 ? 4 : gap < 8160 ? 5 : 8) << gap;
  }
}

// What docs/weights.md promises.
TEST(Delta, OfOnePercentOfBf16IsAtMost32TenthsOfAByteAnElement) {
  std::mt19937_64 dice(2);
  const Bytes base = random_bytes(dice, 1 << 20);
  Bytes fresh = base;
  const std::size_t changed = change(dice, fresh, 2, 100);
  const auto delta = encode_delta(base, fresh, {2, 0}, base.size());
  ASSERT_TRUE(delta);
  EXPECT_LE(10 * delta->size(), 32 * changed);
  RecordProperty("bytes_an_element",
                 std::to_string(static_cast<double>(delta->size()) / static_cast<double>(changed)));
}

TEST(Delta, ThatIsMoreThanAllowedIsNone) {
  std::mt19937_64 dice(3);
  const Bytes base = random_bytes(dice, 4096);
  Bytes fresh = base;
  change(dice, fresh, 2, 2);
  EXPECT_FALSE(encode_delta(base, fresh, {2, 0}, most_of_delta(base.size())));
  EXPECT_EQ(encode_delta(base, base, {2, 1}, 2)->size(), 2);
}

// Sanitizers see what is written beyond the chunk.
TEST(Delta, ThatIsDamagedIsRefusedOrStaysWithinTheChunk) {
  std::mt19937_64 dice(4);
  for (int round = 0; round < 5000; ++round) {
    const Bytes base = random_bytes(dice, 1 + dice() % 300);
    Bytes fresh = base;
    change(dice, fresh, 2, 10);
    std::string delta = *encode_delta(base, fresh, {2, static_cast<std::uint8_t>(dice() % 2)}, 10000);
    if (round % 3 == 0) delta.resize(dice() % delta.size());
    for (std::uint64_t more = round % 3 == 1 ? 1 + dice() % 3 : 0; more > 0; --more) {
      delta[dice() % delta.size()] = static_cast<char>(dice());
    }
    if (round % 3 == 2) {
      delta.resize(dice() % 60);
      for (char& byte : delta) byte = static_cast<char>(dice());
      if (delta.size() > 1) delta[0] = 2, delta[1] = static_cast<char>(dice() % 2);  // further in
    }
    Bytes made(base.size() + 2, std::byte{0x5a});
    std::ranges::copy(base, made.begin() + 1);
    (void)apply_delta(delta, std::span(made).subspan(1, base.size()));
    EXPECT_EQ(made.front(), std::byte{0x5a}) << round;
    EXPECT_EQ(made.back(), std::byte{0x5a}) << round;
  }
}

TEST(Delta, ThatPointsBeyondTheChunkIsRefused) {
  Bytes chunk(8);
  const auto applied = [&](const std::vector<std::uint8_t>& delta) {
    return apply_delta({reinterpret_cast<const char*>(delta.data()), delta.size()}, chunk);
  };
  EXPECT_TRUE(applied({2, 0, 3, 1, 2}));
  EXPECT_FALSE(applied({2, 0, 4, 1, 2}));                        // behind the end
  EXPECT_FALSE(applied({2, 0, 3, 1, 2, 0, 1, 2}));               // the same, by the second one
  EXPECT_FALSE(applied({2, 0, 255, 255, 255, 255, 255, 1, 2}));  // far behind it
  EXPECT_FALSE(applied({2, 0, 3, 1}));                           // half of the new bytes
  EXPECT_FALSE(applied({2, 0, 224}));                            // half a gap
  EXPECT_FALSE(applied({3, 0}));                                 // no grid
  EXPECT_FALSE(applied({16, 0}));
  EXPECT_FALSE(applied({2, 2}));
  EXPECT_FALSE(applied({2}));
  EXPECT_FALSE(applied({}));
}

TEST(Delta, GridIsThatOfTheTensorWithMostOfAChunk) {
  Manifest wanted;
  const auto add = [&](const char* name, std::uint32_t element, std::uint64_t size) {
    const std::vector<std::uint64_t> shape{size}, offset{0};
    const auto tensor = wanted.add_tensor(name, {"t", element}, shape);
    ASSERT_TRUE(tensor && wanted.add_shard(*tensor, {0, 0, offset, shape, {}}));
  };
  add("a", 1, 3);    // bytes 0 to 2
  add("b", 2, 100);  // 3 to 202
  add("c", 16, 10);  // 203 to 362
  const auto demand = Demand::make(wanted, {}, 100);
  const auto grids = grids_of(*demand);
  ASSERT_EQ(grids.size(), 4);
  // What a grid's first unit begins before its chunk: b begins at 3, c at 203.
  const std::vector<std::pair<int, int>> expected{{2, 1}, {2, 1}, {8, 5}, {8, 1}};
  for (std::size_t at = 0; at < 4; ++at) {
    EXPECT_EQ(std::pair(int{grids[at].unit}, int{grids[at].shift}), expected[at]) << at;
  }
}

}  // namespace
}  // namespace p2p::weights
