// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/block_digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace p2p {
namespace {

std::uint64_t whole(std::span<const std::byte> bytes) {
  BlockDigest digest;
  digest.add(bytes);
  return digest.value();
}

TEST(BlockDigest, IsTheSameHoweverTheBytesCome) {
  std::mt19937_64 random(3);
  std::vector<std::byte> bytes(100'001);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const std::uint64_t expected = whole(bytes);
  for (const std::size_t most : {1, 7, 4096, 5000, 30'000}) {
    BlockDigest digest;
    for (std::span<const std::byte> rest = bytes; !rest.empty();) {
      const std::size_t size = std::min<std::size_t>(rest.size(), random() % (most + 1));
      digest.add(rest.first(size));
      rest = rest.subspan(size);
    }
    EXPECT_EQ(digest.value(), expected) << "in parts of " << most << " bytes at most";
  }
}

TEST(BlockDigest, TellsWhatDiffers) {
  std::vector<std::byte> bytes(3 * kDigestBlock);
  const std::uint64_t zeros = whole(bytes);
  EXPECT_NE(zeros, whole(std::span(bytes).first(bytes.size() - 1)));
  bytes[kDigestBlock] = std::byte{1};
  const std::uint64_t second = whole(bytes);
  std::swap(bytes[0], bytes[kDigestBlock]);
  EXPECT_NE(second, whole(bytes)) << "blocks that changed places";
  EXPECT_NE(second, zeros);
}

// What others compute: digests go between builds and machines.
TEST(BlockDigest, OfKnownBytes) {
  EXPECT_EQ(whole({}), 0x2D06800538D394C2U) << "XXH3 of nothing";
  const std::vector<std::byte> bytes(5000, std::byte{0x61});
  EXPECT_EQ(whole(bytes), 13611138471162396062U);
}

}  // namespace
}  // namespace p2p
