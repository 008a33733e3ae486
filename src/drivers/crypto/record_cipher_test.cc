// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/crypto/record_cipher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

namespace p2p::crypto {
namespace {

using Type = RecordCipher::Type;
using Use = RecordCipher::Use;

Bytes from_hex(std::string_view text) {
  Bytes bytes;
  for (std::size_t i = 0; i != text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

RecordCipher::Secret secret(std::string_view hex) {
  RecordCipher::Secret made;
  std::ranges::copy(from_hex(hex), made.begin());
  return made;
}

constexpr std::string_view kTrafficSecret =
    "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";

// RFC 8448, section 3: what the client sends as application data.
TEST(RecordCipherTest, SealsAndOpensAsTheStandardShows) {
  const Bytes record = from_hex(
      "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20441e2b62974e"
      "1f"
      "5a6292a2977014bd1e3deae63aeebb21694915e4");
  Bytes clear(50);
  for (std::size_t i = 0; i != clear.size(); ++i) clear[i] = static_cast<std::byte>(i);
  const auto seals = RecordCipher::start(Use::kSeals, secret(kTrafficSecret)).value();
  Bytes sealed(clear.size() + RecordCipher::kAdded);
  ASSERT_TRUE(seals->seal(Type::kData, clear, sealed.data()));
  EXPECT_EQ(sealed, record);

  const auto opens = RecordCipher::start(Use::kOpens, secret(kTrafficSecret)).value();
  const auto head = std::span(sealed).first<RecordCipher::kHeadBytes>();
  ASSERT_EQ(RecordCipher::record_bytes(head).value(), sealed.size());
  const auto opened = opens->open(sealed);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->type, Type::kData);
  EXPECT_TRUE(std::ranges::equal(opened->clear, clear));
}

TEST(RecordCipherTest, ANewKeyIsAnotherKeyForBothSides) {
  const auto seals = RecordCipher::start(Use::kSeals, secret(kTrafficSecret)).value();
  const auto opens = RecordCipher::start(Use::kOpens, secret(kTrafficSecret)).value();
  const Bytes clear(10, std::byte{1});
  Bytes first(clear.size() + RecordCipher::kAdded);
  Bytes second = first;
  ASSERT_TRUE(seals->seal(Type::kData, clear, first.data()));
  ASSERT_TRUE(seals->update_key());
  ASSERT_TRUE(seals->seal(Type::kData, clear, second.data()));
  EXPECT_NE(first, second);
  ASSERT_TRUE(opens->open(first));
  ASSERT_TRUE(opens->update_key());
  ASSERT_TRUE(opens->open(second));
}

TEST(RecordCipherTest, WhatCannotBeARecordIsNone) {
  const auto bytes = [](int type, int version, std::size_t size) {
    const std::array head{static_cast<std::byte>(type), std::byte{3}, static_cast<std::byte>(version),
                          static_cast<std::byte>(size >> 8), static_cast<std::byte>(size)};
    return RecordCipher::record_bytes(head);
  };
  EXPECT_TRUE(bytes(23, 3, 17));
  EXPECT_TRUE(bytes(23, 3, (1U << 14) + 256));
  EXPECT_FALSE(bytes(23, 3, (1U << 14) + 257));
  EXPECT_FALSE(bytes(23, 3, 16));
  EXPECT_FALSE(bytes(23, 1, 100));
  EXPECT_FALSE(bytes(20, 3, 100));
}

}  // namespace
}  // namespace p2p::crypto
