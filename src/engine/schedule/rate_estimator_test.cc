// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/rate_estimator.h"

#include <gtest/gtest.h>

#include <chrono>

namespace p2p::engine {
namespace {

using Clock = RateEstimator::Clock;

constexpr std::uint64_t kSent = std::uint64_t{1} << 20;

TEST(RateEstimator, SaysWhatIsUnderWay) {
  RateEstimator pace;
  EXPECT_FALSE(pace.has_inflight());
  pace.sent(kSent);
  pace.sent(10);
  EXPECT_TRUE(pace.has_inflight());
  EXPECT_EQ(pace.standing(Clock::now()).flying, kSent + 10);
  pace.ended(10);
  pace.ended(kSent);
  pace.update();
  EXPECT_FALSE(pace.has_inflight());
  EXPECT_EQ(pace.standing(Clock::now()).flying, 0U);
  pace.sent(kSent);
  pace.clear();
  EXPECT_FALSE(pace.has_inflight());
}

TEST(RateEstimator, KnowsASpeedOnceBytesHaveArrived) {
  RateEstimator pace;
  const auto start = Clock::now();
  pace.sent(kSent);
  EXPECT_EQ(pace.standing(Clock::now()).rate, 0);
  pace.ended(kSent);
  pace.update();
  const double least = kSent / std::chrono::duration<double>(Clock::now() - start).count();
  EXPECT_GE(pace.standing(Clock::now()).rate, least);
  EXPECT_EQ(pace.standing(Clock::now()).silence.count(), 0);
  EXPECT_EQ(pace.standing(Clock::now() + std::chrono::seconds(10)).rate, 0) << "it may have changed";
}

TEST(RateEstimator, ShortPiecesSayNothing) {
  RateEstimator pace;
  for (int i = 0; i != 1000; ++i) {
    pace.sent(4096);
    pace.ended(4096);
    pace.update();
  }
  EXPECT_EQ(pace.standing(Clock::now()).rate, 0);
}

TEST(RateEstimator, TellsForHowLongNothingHasArrived) {
  RateEstimator pace;
  pace.sent(kSent);
  EXPECT_GT(pace.standing(Clock::now() + std::chrono::seconds(3)).silence, std::chrono::seconds(2));
  EXPECT_EQ(pace.standing(Clock::now() + std::chrono::seconds(10)).flying, kSent);
}

}  // namespace
}  // namespace p2p::engine
