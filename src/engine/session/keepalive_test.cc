// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/keepalive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr Keepalive::Clock::time_point kStart{1h};
constexpr Keepalive::Limits kLimits{.machine = 600ms, .peer = 3000ms};
constexpr socket::Answers kAnswered{};

/// Judges at each beat until `end` and gives the last verdict, the first error at the latest.
Result<std::chrono::milliseconds> judge_until(Keepalive& keepalive, std::chrono::milliseconds end) {
  Result<std::chrono::milliseconds> verdict{0ms};
  for (auto at = 100ms; at <= end && verdict; at += 100ms) verdict = keepalive.judge(kStart + at, kAnswered);
  return verdict;
}

TEST(Keepalive, APeerThatSaysNothingIsSlowAndThenGone) {
  Keepalive keepalive(kLimits, kStart);
  EXPECT_EQ(judge_until(keepalive, 500ms).value(), 0ms);
  EXPECT_EQ(keepalive.judge(kStart + 600ms, kAnswered).value(), 600ms);
  Keepalive again(kLimits, kStart);
  const auto gone = judge_until(again, 5s);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::kPeerGone);
  EXPECT_THAT(gone.error().message, HasSubstr("though its machine answers"));
}

TEST(Keepalive, APeerThatSpeaksAgainIsSlowNoMore) {
  Keepalive keepalive(kLimits, kStart);
  EXPECT_EQ(judge_until(keepalive, 2900ms).value(), 2900ms);
  keepalive.heard(kStart + 2950ms);
  keepalive.taken(kStart + 2950ms);
  EXPECT_EQ(keepalive.judge(kStart + 3000ms, kAnswered).value(), 0ms);
}

TEST(Keepalive, APeerThatSpeaksAndTakesNothingIsGoneInTheEnd) {
  Keepalive keepalive(kLimits, kStart);
  Result<std::chrono::milliseconds> verdict{0ms};
  for (auto at = 100ms; at <= 3000ms && verdict; at += 100ms) {
    keepalive.heard(kStart + at);
    verdict = keepalive.judge(kStart + at, kAnswered);
  }
  ASSERT_FALSE(verdict);
  EXPECT_THAT(verdict.error().message, HasSubstr("took nothing"));
}

TEST(Keepalive, AMachineThatAcknowledgesNothingIsGoneAtOnce) {
  Keepalive keepalive(kLimits, kStart);
  EXPECT_TRUE(keepalive.judge(kStart + 500ms, {.awaited = true, .last = 500ms}));
  const auto gone = keepalive.judge(kStart + 600ms, {.awaited = true, .last = 600ms});
  ASSERT_FALSE(gone);
  EXPECT_THAT(gone.error().message, HasSubstr("its machine was not heard of for 600 ms"));
}

// After a time in which nothing was sent, what is awaited may just have left.
TEST(Keepalive, AMachineIsNotBlamedForWhatHasJustLeft) {
  Keepalive keepalive(kLimits, kStart);
  EXPECT_TRUE(keepalive.judge(kStart + 100ms, {.awaited = true, .last = 5s}));
  EXPECT_TRUE(keepalive.judge(kStart + 200ms, {.awaited = false, .last = 5s}));
  EXPECT_TRUE(keepalive.judge(kStart + 300ms, {.awaited = true, .last = 5s}));
  EXPECT_TRUE(keepalive.judge(kStart + 400ms, {.awaited = true, .last = 90ms}));
}

}  // namespace
}  // namespace p2p::engine
