// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/messaging/posted_receives.h"

#include <gtest/gtest.h>

namespace p2p::engine {
namespace {

wire::ReceivePosted part(std::uint64_t sequence, bool more, wire::ReceiveSpan span) {
  return {sequence, static_cast<std::uint8_t>(more), {span}};
}

const wire::ReceiveSpan kHost{.address = 0x1000, .size = 10};
const wire::ReceiveSpan kDevice{
    .kind = static_cast<std::uint8_t>(MemoryKind::kCuda), .address = 0x1000, .size = 10};

TEST(PostedReceives, PutTheirPartsTogether) {
  PostedReceives posted(4);
  auto first = part(3, true, kHost);
  auto last = part(3, false, kDevice);
  const auto nothing = posted.assemble(first);
  ASSERT_TRUE(nothing);
  EXPECT_FALSE(*nothing);
  auto whole = posted.assemble(last);
  ASSERT_TRUE(whole && *whole);
  EXPECT_EQ((*whole)->first, 3U);
  EXPECT_EQ((*whole)->second.spans.size(), 2U);
  EXPECT_TRUE(on_device((*whole)->second));
  EXPECT_TRUE(posted.last_on_device());

  ASSERT_TRUE(posted.add(**whole));
  EXPECT_FALSE(posted.add(**whole)) << "twice";
  EXPECT_NE(posted.find(3), nullptr);
  EXPECT_TRUE(posted.take(3));
  EXPECT_FALSE(posted.take(3));
  EXPECT_EQ(posted.find(3), nullptr);
}

TEST(PostedReceives, PartsOfTwoReceivesAreNotMixed) {
  PostedReceives posted(4);
  auto one = part(3, true, kHost);
  auto other = part(4, false, kHost);
  ASSERT_TRUE(posted.assemble(one));
  const auto mixed = posted.assemble(other);
  ASSERT_FALSE(mixed);
  EXPECT_EQ(mixed.error().code, ErrorCode::kProtocol);
}

TEST(PostedReceives, SoManyAreKept) {
  PostedReceives posted(2);
  for (std::uint64_t i = 0; i < 3; ++i) {
    auto one = part(i, false, kHost);
    auto whole = posted.assemble(one);
    ASSERT_EQ(whole.has_value(), i < 2) << i;
    if (i < 2) {
      ASSERT_TRUE(posted.add(**whole));
    }
  }
}

TEST(PostedReceives, SpansThatNoMemoryHasAreRefused) {
  for (const wire::ReceiveSpan& wrong :
       {wire::ReceiveSpan{.address = ~std::uint64_t{0}, .size = 2},
        wire::ReceiveSpan{.address = 0, .size = (std::uint64_t{1} << 40) + 1},
        wire::ReceiveSpan{.kind = 2, .address = 0, .size = 1}}) {
    PostedReceives posted(2);
    auto one = part(0, false, wrong);
    const auto refused = posted.assemble(one);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kProtocol);
  }
}

}  // namespace
}  // namespace p2p::engine
