// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/loop/liveness_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using State = LivenessMonitor::State;
using Sign = LivenessMonitor::Sign;

constexpr LivenessMonitor::Clock::time_point kStart{1h};
constexpr socket::Answers kAnswered{};

LivenessMonitor monitor(std::function<bool(std::chrono::milliseconds)> heard_elsewhere = nullptr) {
  return {{.beat = 100ms, .machine = 600ms, .peer = 3000ms, .heard_elsewhere = std::move(heard_elsewhere)},
          kStart};
}

/// Judges at each beat until `end`, while it is not gone, and gives the last verdict.
LivenessMonitor::Verdict judge_until(LivenessMonitor& peer, std::chrono::milliseconds end) {
  LivenessMonitor::Verdict verdict;
  for (auto at = 100ms; at <= end && verdict.state != State::kGone; at += 100ms) {
    verdict = peer.judge(kStart + at, kAnswered, false);
  }
  return verdict;
}

TEST(LivenessMonitor, APeerThatSaysNothingIsSlowAndThenGone) {
  auto peer = monitor();
  EXPECT_EQ(judge_until(peer, 500ms).state, State::kAlive);
  const auto slow = peer.judge(kStart + 600ms, kAnswered, false);
  EXPECT_EQ(slow.state, State::kSlow);
  EXPECT_EQ(slow.still, 600ms);
  auto again = monitor();
  const auto verdict = judge_until(again, 5s);
  ASSERT_EQ(verdict.state, State::kGone);
  EXPECT_EQ(gone(verdict).code, ErrorCode::kPeerGone);
  EXPECT_THAT(gone(verdict).message, HasSubstr("not heard of for 3000 ms, though its machine answers"));
}

TEST(LivenessMonitor, APeerThatSpeaksAgainIsSlowNoMore) {
  auto peer = monitor();
  EXPECT_EQ(judge_until(peer, 2900ms).still, 2900ms);
  peer.heard(kStart + 2950ms);
  peer.taken(kStart + 2950ms);
  EXPECT_EQ(peer.judge(kStart + 3000ms, kAnswered, false).state, State::kAlive);
}

TEST(LivenessMonitor, APeerThatSpeaksAndTakesNothingIsGoneInTheEnd) {
  auto peer = monitor();
  LivenessMonitor::Verdict verdict;
  for (auto at = 100ms; at <= 3000ms && verdict.state != State::kGone; at += 100ms) {
    peer.heard(kStart + at);
    verdict = peer.judge(kStart + at, kAnswered, false);
  }
  ASSERT_EQ(verdict.state, State::kGone);
  EXPECT_THAT(gone(verdict).message, HasSubstr("took nothing"));
}

TEST(LivenessMonitor, AMachineThatAcknowledgesNothingIsGoneAtOnce) {
  auto peer = monitor();
  EXPECT_EQ(peer.judge(kStart + 500ms, {.awaited = true, .last = 500ms}, false).state, State::kAlive);
  const auto verdict = peer.judge(kStart + 600ms, {.awaited = true, .last = 600ms}, false);
  ASSERT_EQ(verdict.state, State::kGone);
  EXPECT_THAT(gone(verdict).message, HasSubstr("its machine was not heard of for 600 ms"));
}

// After a time in which nothing was sent, what is awaited may just have left.
TEST(LivenessMonitor, AMachineIsNotBlamedForWhatHasJustLeft) {
  auto peer = monitor();
  for (const socket::Answers& answers : {socket::Answers{.awaited = true, .last = 5s},
                                         {.awaited = false, .last = 5s},
                                         {.awaited = true, .last = 5s},
                                         {.awaited = true, .last = 90ms}}) {
    EXPECT_EQ(peer.judge(kStart + 100ms, answers, false).state, State::kAlive);
  }
}

TEST(LivenessMonitor, AMachineThatIsHeardOfElsewhereIsNotGone) {
  auto peer = monitor([](auto) { return true; });
  for (int beat = 0; beat != 5; ++beat) {
    EXPECT_EQ(peer.judge(kStart + 100ms, {.awaited = true, .last = 5s}, false).state, State::kAlive);
  }
}

// Of a third of its time, and half a second at least.
TEST(LivenessMonitor, AMachineIsDarkAtTwoBeatsWhereItWouldBeDialledAnew) {
  const socket::Answers quiet{.awaited = true, .last = 500ms};
  auto peer = monitor();
  EXPECT_EQ(peer.judge(kStart, quiet, true).state, State::kAlive);
  EXPECT_EQ(peer.judge(kStart, {.awaited = true, .last = 499ms}, true).state, State::kAlive);
  EXPECT_EQ(peer.judge(kStart, quiet, true).state, State::kAlive);
  EXPECT_EQ(peer.judge(kStart, quiet, true).state, State::kDark);
  auto other = monitor();
  for (int beat = 0; beat != 5; ++beat) EXPECT_EQ(other.judge(kStart, quiet, false).state, State::kAlive);
}

TEST(LivenessMonitor, WithoutAConnectionTheMachineHasItsTime) {
  auto peer = monitor();
  auto at = 100ms;
  while (at < 600ms) {
    EXPECT_EQ(peer.judge(kStart + at).state, State::kAlive);
    at += 100ms;
  }
  EXPECT_EQ(peer.judge(kStart + at).state, State::kGone);
}

TEST(LivenessMonitor, WithoutAConnectionTimeInWhichThisProcessStoodStillCountsForLittle) {
  auto peer = monitor();
  EXPECT_EQ(peer.judge(kStart + 10min).state, State::kAlive);
}

TEST(LivenessMonitor, AMachineThatAnswersAttemptsGivesThePeerItsTime) {
  auto peer = monitor();
  LivenessMonitor::Verdict verdict;
  for (auto at = 100ms; at <= 5s && verdict.state != State::kGone; at += 100ms) {
    EXPECT_FALSE(peer.is_path_dark(kStart + at, kAnswered));
    verdict = peer.judge(kStart + at);
  }
  ASSERT_EQ(verdict.state, State::kGone);
  EXPECT_EQ(verdict.sign, Sign::kSilence);
}

TEST(LivenessMonitor, AnAttemptWithoutAnswersIsMadeAnew) {
  auto peer = monitor();
  EXPECT_FALSE(peer.is_path_dark(kStart, {.awaited = true, .last = 199ms}));
  EXPECT_TRUE(peer.is_path_dark(kStart, {.awaited = true, .last = 200ms}));
  EXPECT_FALSE(peer.is_path_dark(kStart, {.unsure = true, .last = 200ms}));
}

}  // namespace
}  // namespace p2p::engine
