// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "pattern.h"

#include <gtest/gtest.h>

#include <vector>

namespace p2p::perf {
namespace {

std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed, std::uint64_t position) {
  std::vector<std::byte> bytes(size);
  fill_pattern(bytes, seed, position);
  return bytes;
}

TEST(Pattern, IsTheSameHoweverItIsCut) {
  const auto whole = pattern(1000, 5, 0);
  for (const std::size_t cut : {1u, 7u, 8u, 9u, 500u, 999u}) {
    auto parts = pattern(cut, 5, 0);
    const auto rest = pattern(1000 - cut, 5, cut);
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, whole) << cut;
  }
}

TEST(Pattern, DependsOnSeedAndPosition) {
  const auto bytes = pattern(64, 5, 0);
  EXPECT_NE(bytes, pattern(64, 6, 0));
  EXPECT_NE(bytes, pattern(64, 5, 8));
  EXPECT_EQ(find_difference(bytes, 5, 0), std::nullopt);
  EXPECT_NE(find_difference(bytes, 6, 0), std::nullopt);
  EXPECT_NE(find_difference(bytes, 5, 64), std::nullopt);
}

TEST(Pattern, FindsTheFirstWrongByte) {
  for (const std::size_t wrong : {0u, 3u, 8u, 62u}) {
    auto bytes = pattern(63, 5, 3);
    bytes[wrong] ^= std::byte{1};
    bytes[62] ^= std::byte{2};
    EXPECT_EQ(find_difference(bytes, 5, 3), wrong);
  }
}

TEST(Pattern, FindsTheFirstNonzeroByte) {
  std::vector<std::byte> bytes(20);
  EXPECT_EQ(find_nonzero(bytes), std::nullopt);
  bytes[17] = std::byte{1};
  EXPECT_EQ(find_nonzero(bytes), 17u);
}

}  // namespace
}  // namespace p2p::perf
