// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The arithmetic of the kernel that hashes, part by part on the processor, against the library's.
#include "kernels/xxh3.h"

#define XXH_INLINE_ALL  // NOLINT(readability-identifier-naming): xxhash looks for it
#include <gtest/gtest.h>
#include <xxhash.h>

#include <array>
#include <cstring>
#include <random>

#include "kernels/digest.h"

namespace p2p::kernels {
namespace {

using Block = std::array<std::uint64_t, kHashedBlock / sizeof(std::uint64_t)>;

std::uint64_t hash_in_parts(const Block& block) {
  std::uint64_t sum = 0;
  for (unsigned part = 0; part < xxh3::kParts; ++part) {
    xxh3::Pair sums = xxh3::first_sums(part);
    for (unsigned row = 0; row < xxh3::kRows; ++row) {
      if (row != 0) xxh3::scramble(sums, xxh3::kSecret, part);
      for (unsigned stripe = 0; stripe < xxh3::kStripes; ++stripe) {
        const std::size_t word = ((row * xxh3::kStripes + stripe) * xxh3::kParts + part) * 2;
        xxh3::add(sums, {block[word], block[word + 1]}, xxh3::keys(xxh3::kSecret, row, stripe, part));
      }
    }
    sum += xxh3::folded(sums, xxh3::kSecret, part);
  }
  return xxh3::finish(sum, kHashedBlock);
}

TEST(Xxh3, IsTheLibrarys) {
  static_assert(xxh3::kRows * xxh3::kStripes * xxh3::kStripe == kHashedBlock);
  std::mt19937_64 random(7);
  Block block{};
  EXPECT_EQ(hash_in_parts(block), XXH3_64bits(block.data(), sizeof block)) << "zeros";
  for (int round = 0; round < 1000; ++round) {
    for (std::uint64_t& word : block) word = random();
    ASSERT_EQ(hash_in_parts(block), XXH3_64bits(block.data(), sizeof block)) << round;
  }
}

}  // namespace
}  // namespace p2p::kernels
