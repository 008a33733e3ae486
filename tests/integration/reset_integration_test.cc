// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Streams of `tcp` are reset on their way, all that there are, while the session lives.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "support/eventually.h"
#include "support/middlebox.h"
#include "support/peer.h"
#include "support/sides.h"

namespace p2p::testing::reset {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kSize = Sides::kSize;

/// With a middlebox between them, and all streams up.
struct ByMiddlebox : Sides {
  explicit ByMiddlebox(const EndpointPlan& plan) : Sides(plan), box(peer.port()) {
    join(box.port());
    EXPECT_TRUE(eventually([&] { return connection.stats().channels == connection.stats().channels_wanted; }))
        << route();
  }

  Middlebox box;
};

/// Over a transport's name as `plan_over` takes it, with so many streams.
class ResetTest : public ::testing::TestWithParam<std::tuple<const char*, unsigned>> {
 protected:
  static EndpointPlan plan() {
    EndpointPlan plan = plan_over(std::get<0>(GetParam()));
    plan.streams = std::get<1>(GetParam());
    plan.workers = kSharingWorkers;  // one operation after the other uses the same memory
    return plan;
  }
};

// In their middle, in the handshake of the stream that comes instead, and between operations.
TEST_P(ResetTest, NothingFailsWhileStreamsComeBack) {
  for (const std::uint64_t seed : {std::uint64_t{1}, std::uint64_t{std::random_device()()}}) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    EndpointPlan patient = plan();
    patient.keepalive = milliseconds(4000);  // also where this thread has to wait for its turn
    ByMiddlebox sides(patient);
    for (unsigned which = 0; which != Sides::kOperations; ++which) {
      SCOPED_TRACE(which);
      std::vector<std::uint64_t> after{random() % kSize};
      if (random() % 4 == 0) after.push_back(random() % 500);
      sides.box.reset_after(after);
      sides.any(which, random());
      if (HasFailure()) return;
    }
    EXPECT_GT(sides.connection.stats().channels_lost, 0U);
    EXPECT_TRUE(is_ok(sides.connection.status()));
    EXPECT_TRUE(eventually([&] {
      const Stats stats = sides.connection.stats();
      return stats.channels_returned == stats.channels_lost && stats.channels == stats.channels_wanted;
    })) << sides.route();
    EXPECT_THAT(sides.connection.routes().front().history, HasSubstr("tcp channels lost "));
  }
}

// What is started meanwhile waits, and a caller is told how it stands.
TEST_P(ResetTest, AllOfThemAtOnce) {
  const unsigned streams = std::get<1>(GetParam());
  EndpointPlan patient = plan();
  patient.keepalive = milliseconds(6000);  // also where this thread has to wait for its turn
  ByMiddlebox sides(patient);
  for (unsigned which = 0; which != Sides::kOperations; ++which) {
    SCOPED_TRACE(which);
    sides.box.block(true);
    sides.box.reset(Middlebox::What::kStreams);
    const std::string none = fmt::format("0 of {} channel", streams);
    ASSERT_TRUE(eventually([&] { return sides.route().starts_with(none); })) << sides.route();
    sides.box.block(false);
    sides.any(which, which + 10);
    if (HasFailure()) return;
  }
  const std::string all = streams == 1 ? "1 channel:" : fmt::format("{} channels:", streams);
  EXPECT_TRUE(eventually([&] { return sides.route().starts_with(all); })) << sides.route();
  EXPECT_TRUE(is_ok(sides.connection.status()));
}

// An attempt that hangs is given up while there is time for others.
TEST_P(ResetTest, ADialThatIsNeverAnsweredIsNotTheLast) {
  const unsigned streams = std::get<1>(GetParam());
  EndpointPlan patient = plan();
  patient.keepalive = milliseconds(6000);  // also where this thread has to wait for its turn
  ByMiddlebox sides(patient);
  for (unsigned which = 0; which != Sides::kOperations; ++which) {
    SCOPED_TRACE(which);
    const int before = sides.box.swallowed();
    sides.box.swallow(true);
    sides.box.reset(Middlebox::What::kStreams);
    ASSERT_TRUE(eventually([&] { return sides.box.swallowed() >= before + static_cast<int>(streams); }))
        << sides.route();
    sides.box.swallow(false);
    sides.any(which, which + 10);
    if (HasFailure()) return;
  }
  EXPECT_TRUE(is_ok(sides.connection.status()));
}

// Whichever side waits for it.
TEST_P(ResetTest, WhatNeverComesBackIsLostInTime) {
  for (const bool here : {true, false}) {
    SCOPED_TRACE(here ? "a write of the side that dialled" : "a write of the side that was dialled");
    EndpointPlan quick = plan();
    quick.keepalive = milliseconds(1000);
    ByMiddlebox sides(quick);
    sides.box.block(true);
    sides.box.reset(Middlebox::What::kStreams);
    const auto start = Clock::now();
    Status ended;
    if (here) {
      ended = sides.connection.write(sides.own.span(0, kSize), sides.target).wait(kLimit);
    } else {
      ended = sides.peer.wait(sides.begin_at_peer("write"));
    }
    EXPECT_LT(Clock::now() - start, quick.keepalive + kWideMargin);
    ASSERT_TRUE(is_error(ended, {ErrorCode::kPeerGone}));
    EXPECT_TRUE(eventually([&] { return !sides.connection.status(); }));
    const std::string why = sides.connection.status().error().message;
    EXPECT_THAT(why, HasSubstr("tcp"));
    EXPECT_THAT(why, HasSubstr("none of its channels came back in time"));
  }
}

// They wait in a lane without a channel, which nothing looks at.
TEST_P(ResetTest, WhatIsCancelledMeanwhileEndsAtOnce) {
  EndpointPlan slow = plan();
  slow.keepalive = 2 * kLimit;
  ByMiddlebox sides(slow);
  sides.box.block(true);
  sides.box.reset(Middlebox::What::kStreams);
  ASSERT_TRUE(eventually([&] { return sides.route().starts_with("0 of "); })) << sides.route();
  const Transfer write = sides.connection.write(sides.own.span(0, kSize), sides.target);
  EXPECT_TRUE(is_error(write.wait(milliseconds(1)), {ErrorCode::kTimedOut}));
  write.cancel();
  EXPECT_TRUE(is_error(write.wait(kLimit / 2), {ErrorCode::kCancelled}));
  sides.box.block(false);
  sides.write(7);
}

INSTANTIATE_TEST_SUITE_P(Streams, ResetTest,
                         ::testing::Combine(::testing::Values("tcp", "tcp_tls"), ::testing::Values(1U, 3U)),
                         [](const auto& each) {
                           return fmt::format("{}_{}", std::get<0>(each.param), std::get<1>(each.param));
                         });

}  // namespace
}  // namespace p2p::testing::reset
