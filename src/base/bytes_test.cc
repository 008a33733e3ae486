// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/bytes.h"

#include <gtest/gtest.h>

#include <limits>

namespace p2p {
namespace {

constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();

TEST(Bytes, WhatIsWrittenIsReadAgain) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.put(std::uint16_t{0x0201});
  out.put(as_bytes("abc"));
  out.put(kMost);
  EXPECT_EQ(bytes[0], std::byte{1}) << "little-endian";
  ByteReader in(bytes);
  EXPECT_EQ(in.get<std::uint16_t>(), 0x0201);
  EXPECT_EQ(to_string(in.take(3)), "abc");
  EXPECT_EQ(in.get<std::uint64_t>(), kMost);
  EXPECT_EQ(in.left(), 0U);
  EXPECT_TRUE(in.ok());
}

TEST(Bytes, AfterAReadPastTheEndAllFail) {
  const Bytes bytes(3);
  ByteReader in(bytes);
  EXPECT_EQ(in.get<std::uint32_t>(), 0U);
  EXPECT_FALSE(in.ok());
  EXPECT_EQ(in.take(1).size(), 0U) << "though three bytes are there";
  EXPECT_EQ(ByteReader(bytes).take(kMost).size(), 0U);
}

TEST(Bytes, NumbersTakeSevenBitsAByte) {
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{127}, std::uint64_t{128}, kMost}) {
    Bytes bytes;
    ByteWriter(bytes).put_varint(value);
    ByteReader in(bytes);
    EXPECT_EQ(in.get_varint(), value);
    EXPECT_EQ(in.left(), 0U);
    EXPECT_TRUE(in.ok());
    ByteReader cut(ByteView(bytes).first(bytes.size() - 1));
    cut.get_varint();
    EXPECT_FALSE(cut.ok());
  }
  Bytes over(10, std::byte{0xff});
  over.back() = std::byte{2};  // the 65th bit
  ByteReader in(over);
  in.get_varint();
  EXPECT_FALSE(in.ok());
}

}  // namespace
}  // namespace p2p
