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
  PostedReceives posted(4, std::make_shared<PeerBudget>(std::uint64_t{1} << 30));
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
  PostedReceives posted(4, std::make_shared<PeerBudget>(std::uint64_t{1} << 30));
  auto one = part(3, true, kHost);
  auto other = part(4, false, kHost);
  ASSERT_TRUE(posted.assemble(one));
  const auto mixed = posted.assemble(other);
  ASSERT_FALSE(mixed);
  EXPECT_EQ(mixed.error().code, ErrorCode::kProtocol);
}

TEST(PostedReceives, SoManyAreKept) {
  PostedReceives posted(2, std::make_shared<PeerBudget>(std::uint64_t{1} << 30));
  for (std::uint64_t i = 0; i < 3; ++i) {
    auto one = part(i, false, kHost);
    auto whole = posted.assemble(one);
    ASSERT_EQ(whole.has_value(), i < 2) << i;
    if (i < 2) {
      ASSERT_TRUE(posted.add(**whole));
    }
  }
}

// Receives that end by a time limit are withdrawn, for as long as a connection lives.
TEST(PostedReceives, WithdrawnOnesDoNotCount) {
  PostedReceives posted(4, std::make_shared<PeerBudget>(std::uint64_t{1} << 30));
  const auto post = [&](std::uint64_t sequence) {
    auto one = part(sequence, false, kHost);
    auto whole = posted.assemble(one);
    return whole && posted.add(**whole);
  };
  for (std::uint64_t i = 0; i != 1000; ++i) {
    ASSERT_TRUE(post(i)) << i;
    EXPECT_TRUE(posted.withdraw(i));
    EXPECT_FALSE(posted.withdraw(i)) << "once";
  }
  EXPECT_FALSE(post(500)) << "it was posted";
  EXPECT_FALSE(posted.withdraw(1000)) << "it was not";
  for (const std::uint64_t i : {500, 0, 999}) {
    ASSERT_NE(posted.find(i), nullptr);
    EXPECT_TRUE(posted.find(i)->withdrawn);
    const auto taken = posted.take(i);
    ASSERT_TRUE(taken);
    EXPECT_TRUE(taken->withdrawn);
    EXPECT_EQ(posted.find(i), nullptr);
  }
  EXPECT_TRUE(posted.find(499) && posted.find(501) && posted.find(1) && posted.find(998));
}

// What a peer can make this side keep is bounded, also by numbers that it leaves out.
TEST(PostedReceives, RunsOfWithdrawnOnesCount) {
  PostedReceives posted(4, std::make_shared<PeerBudget>(std::uint64_t{1} << 30));
  for (const std::uint64_t i : {1, 3, 5, 7, 9}) {
    auto one = part(i, false, kHost);
    auto whole = posted.assemble(one);
    ASSERT_EQ(whole.has_value(), i != 9) << i;
    if (!whole) continue;
    ASSERT_TRUE(posted.add(**whole));
    ASSERT_TRUE(posted.withdraw(i));
  }
}

TEST(PostedReceives, SpansThatNoMemoryHasAreRefused) {
  for (const wire::ReceiveSpan& wrong :
       {wire::ReceiveSpan{.address = ~std::uint64_t{0}, .size = 2},
        wire::ReceiveSpan{.address = 0, .size = (std::uint64_t{1} << 40) + 1},
        wire::ReceiveSpan{.kind = 2, .address = 0, .size = 1}}) {
    PostedReceives posted(2, std::make_shared<PeerBudget>(std::uint64_t{1} << 30));
    auto one = part(0, false, wrong);
    const auto refused = posted.assemble(one);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kProtocol);
  }
}

}  // namespace
}  // namespace p2p::engine
