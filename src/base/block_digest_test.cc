// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/block_digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <vector>

#include "support/memory.h"

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

TEST(BlockDigest, OfMemoryThatMayBeBadIsTheSame) {
  testing::Pages pages(5 * kDigestBlock);
  testing::fill(pages.bytes(), 3);
  const auto guarded = [&](std::size_t first, std::size_t size) -> std::optional<std::uint64_t> {
    BlockDigest digest;
    if (!digest.add_guarded(pages.part(0, first)) || !digest.add_guarded(pages.part(first, size - first))) {
      return std::nullopt;
    }
    return digest.value();
  };
  for (const std::size_t first : {std::size_t{0}, std::size_t{1}, kDigestBlock, 2 * kDigestBlock + 17}) {
    EXPECT_EQ(guarded(first, pages.bytes().size()), whole(pages.bytes())) << first;
  }
  const std::uint64_t good = whole(pages.part(0, 4 * kDigestBlock));
  testing::spoil(pages.part(4 * kDigestBlock, kDigestBlock), testing::Bad::kProtected);
  EXPECT_EQ(guarded(17, 4 * kDigestBlock), good);
  EXPECT_EQ(guarded(17, 4 * kDigestBlock + 1), std::nullopt) << "a part";
  EXPECT_EQ(guarded(kDigestBlock, 5 * kDigestBlock), std::nullopt) << "a whole block";
}

#if defined(__x86_64__)
TEST(BlockHash, IsTheSameByWhateverInstructions) {
  if (__builtin_cpu_supports("avx2") == 0) GTEST_SKIP() << "this processor has no AVX2";
  std::vector<std::byte> bytes(3 * kDigestBlock);
  testing::fill(bytes, 9);
  std::array<std::uint64_t, 3> any{}, wide{};
  hash_blocks_by_any(bytes.data(), any.size(), any.data());
  hash_blocks_by_avx2(bytes.data(), wide.size(), wide.data());
  EXPECT_EQ(any, wide);
}
#endif

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
