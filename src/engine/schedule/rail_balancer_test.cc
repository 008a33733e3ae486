// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/rail_balancer.h"

#include <gtest/gtest.h>

#include <vector>

namespace p2p::engine {
namespace {

using std::chrono::duration;

constexpr std::uint64_t kMega = 1'000'000;

RunnerLoad at(double megabytes_a_second, std::uint64_t flying = 0, double silence = 0) {
  return {.flying = flying, .rate = megabytes_a_second * kMega, .silence = duration<double>(silence)};
}

TEST(Dealing, ASlowChannelLeavesTheLastOfTheWork) {
  const std::vector channels{at(5), at(5), at(20), at(50)};
  const Least least = least_queued(channels, {.channel = 0, .batch = kMega});
  EXPECT_EQ(least.best, 3U);
  // 200 ms of all, but for what is not worth a look.
  EXPECT_NEAR(static_cast<double>(least.queued), 16.0 * kMega, 0.5 * kMega);
  EXPECT_EQ(least_queued(channels, {.channel = 3, .batch = kMega}).queued, 0U);
}

TEST(Dealing, WhatIsUnderWayCounts) {
  // 1.2 s of the slow one's own, which takes one batch more if all have work for 1.4 s.
  const std::vector channels{at(5, 6 * kMega), at(50, 4 * kMega)};
  const Least least = least_queued(channels, {.channel = 0, .batch = kMega});
  EXPECT_NEAR(static_cast<double>(least.queued), 67.0 * kMega, 1.0 * kMega);
  // It is that far with the batches under way as time passes.
  const std::vector later{at(5, 6 * kMega, 1.1), at(50, 4 * kMega)};
  EXPECT_NEAR(static_cast<double>(least_queued(later, {.channel = 0, .batch = kMega}).queued), 6.5 * kMega,
              1.0 * kMega);
}

TEST(Dealing, LikeChannelsTakeWhatTheyCan) {
  const std::vector channels{at(100), at(100), at(100), at(100)};
  for (std::size_t i = 0; i != channels.size(); ++i) {
    EXPECT_EQ(least_queued(channels, {.channel = i, .batch = kMega}).queued, 0U);
  }
  // So do those that differ by what a thread may be held up.
  const std::vector fast{at(2000), at(1000, 2 * kMega)};
  EXPECT_EQ(least_queued(fast, {.channel = 1, .batch = kMega}).queued, 0U);
}

TEST(Dealing, NothingIsKnownOfAChannelInTheBeginning) {
  const std::vector channels{at(0), at(50), at(5)};
  EXPECT_EQ(least_queued(channels, {.channel = 0, .batch = kMega}).queued, 0U);
  EXPECT_EQ(least_queued(channels, {.channel = 2, .batch = kMega}).best, 1U);
  const std::vector alone{at(0), at(5)};
  EXPECT_EQ(least_queued(alone, {.channel = 1, .batch = kMega}).queued, 0U);
}

TEST(Dealing, NobodyWaitsForAChannelThatWentSilent) {
  const std::vector channels{at(5), at(50, 4 * kMega, 0.5)};
  EXPECT_EQ(least_queued(channels, {.channel = 0, .batch = kMega}).queued, 0U);
}

TEST(Dealing, APieceTakesNoLongTime) {
  EXPECT_EQ(item_for(0), 64U << 10);
  EXPECT_EQ(item_for(0.2 * kMega), 64U << 10);  // less says nothing of the speed
  EXPECT_NEAR(static_cast<double>(item_for(1.5 * kMega)), 0.15 * kMega, 1);
  EXPECT_EQ(item_for(1000.0 * kMega), 256U << 10);
}

}  // namespace
}  // namespace p2p::engine
