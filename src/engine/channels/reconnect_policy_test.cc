// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/reconnect_policy.h"

#include <gtest/gtest.h>

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;
using Clock = ReconnectPolicy::Clock;

constexpr std::chrono::milliseconds kPatience{1000};

/// ReconnectPolicy at times of the test's own.
struct Tried {
  ReconnectPolicy attempts{kPatience};
  Clock::time_point now{};

  /// As after a day on which streams were lost again and again: pauses are as long as they get.
  void fail_often() {
    for (int i = 0; i != 20; ++i) {
      attempts.succeed(now);
      now = attempts.fail(now);
    }
  }
  void press() { now = attempts.press(now, attempts.fail(now)); }

  void fail_at_once() {
    attempts.begin(now);
    now = attempts.fail(now);
  }
  Clock::duration hang() {
    const auto start = now;
    now = attempts.begin(now);
    const auto took = now - start;
    now = attempts.fail(now);
    return took;
  }
};

TEST(AttemptsTest, PausesGrowWhileOthersServe) {
  Tried tried;
  EXPECT_EQ(tried.attempts.fail(tried.now) - tried.now, 50ms);
  EXPECT_EQ(tried.attempts.fail(tried.now) - tried.now, 100ms);
  tried.fail_often();
  EXPECT_EQ(tried.attempts.fail(tried.now) - tried.now, 1s);
  EXPECT_EQ(tried.attempts.begin(tried.now) - tried.now, 2s);
  EXPECT_FALSE(tried.attempts.exhausted());
}

TEST(AttemptsTest, OneThatStayedBeginsAnew) {
  Tried tried;
  tried.fail_often();
  tried.attempts.succeed(tried.now);
  tried.now += 10s;
  EXPECT_EQ(tried.attempts.fail(tried.now) - tried.now, 50ms);
}

// Pauses of a second were as long as the keepalive time: one attempt that failed was one too many.
TEST(AttemptsTest, TheLastOneIsTriedOftenWhateverWasBefore) {
  Tried tried;
  tried.fail_often();
  const auto start = tried.now;
  tried.press();
  int times = 0;
  for (; !tried.attempts.exhausted(); ++times) tried.fail_at_once();
  EXPECT_EQ(times, 8);
  EXPECT_LE(tried.now - start, kPatience * 5 / 4);
}

TEST(AttemptsTest, OneThatHangsLeavesTimeForOthers) {
  Tried tried;
  tried.fail_often();
  const auto start = tried.now;
  tried.press();
  EXPECT_EQ(tried.hang(), 250ms);
  EXPECT_EQ(tried.hang(), 250ms);
  EXPECT_FALSE(tried.attempts.exhausted());
  EXPECT_EQ(tried.hang(), 500ms);
  EXPECT_TRUE(tried.attempts.exhausted());
  EXPECT_LE(tried.now - start, kPatience * 5 / 4);
}

TEST(AttemptsTest, WhatIsUnderWayWhenTheLastOneIsLostIsCutShort) {
  Tried tried;
  const auto due = tried.attempts.begin(tried.now);
  EXPECT_EQ(due - tried.now, 2s);
  EXPECT_EQ(tried.attempts.press(tried.now, due) - tried.now, 250ms);
}

// Neither does the time in which the peer did not answer, nor that in which this process stood still.
TEST(AttemptsTest, OnlyAttemptsCount) {
  Tried tried;
  tried.press();
  tried.now += 1min;
  EXPECT_FALSE(tried.attempts.exhausted());
  tried.attempts.begin(tried.now);
  tried.now += 1min;
  tried.attempts.fail(tried.now);
  EXPECT_FALSE(tried.attempts.exhausted());
}

TEST(AttemptsTest, ThereIsTimeAgainOnceAnotherOneWasUp) {
  Tried tried;
  tried.press();
  while (!tried.attempts.exhausted()) tried.hang();
  tried.attempts.relax();
  EXPECT_FALSE(tried.attempts.exhausted());
  tried.press();
  EXPECT_FALSE(tried.attempts.exhausted());
}

}  // namespace
}  // namespace p2p::engine
