// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Links of several kinds, by a clock of the test's own.
#include "engine/channels/growth_trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

namespace p2p::engine::growth_trial_test {
namespace {

using namespace std::chrono_literals;
using Clock = GrowthTrial::Clock;

/// Bytes a second that so many streams carry together.
using Carries = std::function<double(std::size_t streams)>;

constexpr double kLink = 1e9;

double capped(std::size_t streams, double cap) { return std::min(kLink, cap * static_cast<double>(streams)); }

/// Streams that are always busy, over a link.
struct Driven {
  Driven(Carries by, std::size_t first, std::size_t spare)
      : carries(std::move(by)), up(first), may_come(spare), most_up(first) {}

  void look() {
    const auto step = trial.look({.now = now,
                                  .moved = static_cast<std::uint64_t>(moved),
                                  .path_bound = path_bound,
                                  .up = up,
                                  .may_come = may_come});
    up += step.add - step.give_back;
    may_come += step.give_back - step.add;
    most_up = std::max(most_up, up);
    kept = kept || step.gained;
    tried += step.add != 0 ? 1 : 0;
    next = step.next;
  }

  void run(Clock::duration time) {
    const auto end = now + time;
    while (next <= end) {
      pass_to(next);
      look();
    }
    pass_to(end);
  }

  void pass_to(Clock::time_point then) {
    moved += carries(up) * std::chrono::duration<double>(then - now).count();
    now = then;
  }

  Carries carries;
  std::size_t up, may_come, most_up;
  bool path_bound = true, kept = false;
  unsigned tried = 0;
  double moved = 0;
  GrowthTrial trial;
  Clock::time_point now{}, next{};
};

TEST(GrowthTrialTest, StreamsThatAreCappedBecomeAsManyAsTheLinkTakes) {
  for (const std::size_t first : {1U, 2U, 3U, 5U, 7U, 9U, 12U, 16U}) {
    SCOPED_TRACE(first);
    Driven run([](std::size_t streams) { return capped(streams, kLink / 20); }, first, 24 - first);
    run.run(1900ms);
    EXPECT_GE(run.carries(run.up), 0.9 * kLink) << run.up;
    EXPECT_TRUE(run.kept);
  }
}

TEST(GrowthTrialTest, OverALinkWithoutACapThereIsOneTrialAndNoStreamMoreAfterIt) {
  Driven run([](std::size_t) { return kLink; }, 2, 22);
  run.run(2s);
  EXPECT_EQ(run.up, 2U);
  EXPECT_EQ(run.most_up, 4U);
  EXPECT_EQ(run.tried, 1U);
  EXPECT_FALSE(run.kept);
  run.run(57s);
  EXPECT_EQ(run.tried, 1U);
  run.run(3s);
  EXPECT_EQ(run.tried, 2U);
  EXPECT_EQ(run.up, 2U);
}

TEST(GrowthTrialTest, NothingIsTriedWhileThreadsAreTheBound) {
  Driven run([](std::size_t streams) { return capped(streams, kLink / 20); }, 1, 23);
  run.path_bound = false;
  run.run(60s);
  EXPECT_EQ(run.tried, 0U);
  run.path_bound = true;
  run.run(3s);
  EXPECT_EQ(run.up, 24U);
}

// What else is on the link leaves less and more of it from look to look.
TEST(GrowthTrialTest, RatesThatScatterLeadToNoStreamMore) {
  for (unsigned seed = 0; seed != 1000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 draws(seed);
    std::uniform_real_distribution<double> share(0.8, 1);
    Driven run([&](std::size_t) { return kLink * share(draws); }, 1, 23);
    run.run(5s);
    EXPECT_EQ(run.up, 1U);
  }
}

TEST(GrowthTrialTest, OnceTheLinkIsFullTheLastOnesAreGivenBack) {
  Driven run([](std::size_t streams) { return capped(streams, kLink / 4); }, 1, 23);
  run.run(5s);
  EXPECT_EQ(run.up, 4U);
  EXPECT_EQ(run.most_up, 8U);
}

TEST(GrowthTrialTest, ATrialEndsWithTheWorkAndIsNotRepeatedAtOnce) {
  Driven run([](std::size_t streams) { return capped(streams, kLink / 20); }, 1, 23);
  while (run.tried == 0) run.run(100ms);
  EXPECT_EQ(run.trial.stop(run.now, run.up), 1U);
  EXPECT_FALSE(run.trial.runs());
  EXPECT_EQ(run.trial.stop(run.now, 1), 0U);
  run.up = 1;
  run.may_come = 23;
  run.next = run.now;
  run.run(9s);
  EXPECT_EQ(run.tried, 1U);
  run.run(3s);
  EXPECT_GT(run.tried, 1U);
}

TEST(GrowthTrialTest, OnesThatDoNotComeUpEndIt) {
  Driven run([](std::size_t) { return kLink; }, 1, 1);
  while (run.tried == 0) run.run(100ms);
  run.up = 1;
  run.run(1s);
  EXPECT_FALSE(run.trial.runs());
  EXPECT_EQ(run.tried, 1U);
}

}  // namespace
}  // namespace p2p::engine::growth_trial_test
