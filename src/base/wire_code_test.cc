// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/wire_code.h"

#include <gtest/gtest.h>

namespace p2p {
namespace {

// What stands in docs/wire.md and what other builds send.
TEST(WireCode, NumbersAreThoseOfTheProtocol) {
  EXPECT_EQ(wire_code(Status()), 0);
  EXPECT_EQ(wire_code(ErrorCode::kInvalidArgument), 1);
  EXPECT_EQ(wire_code(ErrorCode::kNotFound), 3);
  EXPECT_EQ(wire_code(ErrorCode::kPeerGone), 6);
  EXPECT_EQ(wire_code(ErrorCode::kSystem), 11);
  EXPECT_EQ(wire_code(ErrorCode::kDataMismatch), 12);
}

TEST(WireCode, EveryCodeComesBack) {
  for (int i = 0; to_string(static_cast<ErrorCode>(i)) != "unknown"; ++i) {
    const auto code = static_cast<ErrorCode>(i);
    EXPECT_TRUE(is_wire_code(wire_code(code))) << to_string(code);
    EXPECT_EQ(code_from_wire(wire_code(code)), code) << to_string(code);
  }
}

TEST(WireCode, UnknownNumbersAreProtocolErrors) {
  EXPECT_TRUE(is_wire_code(0));
  EXPECT_FALSE(is_wire_code(13));
  for (const std::uint16_t code : {0, 13, 0xffff}) EXPECT_EQ(code_from_wire(code), ErrorCode::kProtocol);
}

}  // namespace
}  // namespace p2p
