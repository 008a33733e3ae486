// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/crypto/crypto.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace p2p::crypto {
namespace {

std::string hex(ByteView bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

// Test cases 1, 2 and 6 of RFC 4231.
TEST(Crypto, HmacGivesThePublishedValues) {
  EXPECT_EQ(hex(hmac_sha256(Bytes(20, std::byte{0x0b}), as_bytes("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256(as_bytes("Jefe"), as_bytes("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(Bytes(131, std::byte{0xaa}),
                            as_bytes("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Crypto, HmacTakesAnEmptyKeyAndAnEmptyMessage) {
  EXPECT_EQ(hex(hmac_sha256({}, {})), "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST(Crypto, RandomBytesDiffer) {
  std::set<std::string> seen;
  for (int draw = 0; draw < 100; ++draw) {
    std::array<std::byte, 16> bytes{};
    ASSERT_TRUE(random_bytes(bytes));
    seen.insert(hex(bytes));
  }
  EXPECT_EQ(seen.size(), 100U);
  EXPECT_TRUE(random_bytes({}));
}

TEST(Crypto, EqualComparesSizesAndBytes) {
  EXPECT_TRUE(equal({}, {}));
  EXPECT_TRUE(equal(as_bytes("abc"), as_bytes("abc")));
  EXPECT_FALSE(equal(as_bytes("abc"), as_bytes("abd")));
  EXPECT_FALSE(equal(as_bytes("abc"), as_bytes("ab")));
  EXPECT_FALSE(equal({}, as_bytes("a")));
}

}  // namespace
}  // namespace p2p::crypto
