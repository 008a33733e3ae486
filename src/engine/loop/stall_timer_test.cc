// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/loop/stall_timer.h"

#include <gtest/gtest.h>

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;

TEST(StallTimer, CountsTheTimeSinceTheLastMove) {
  const StallTimer::Clock::time_point start{1h};
  StallTimer patience(start, 100ms);
  EXPECT_EQ(patience.tick(start + 50ms), 50ms);
  EXPECT_EQ(patience.tick(start + 100ms), 100ms);
  EXPECT_EQ(patience.tick(start + 180ms), 180ms);
  patience.moved(start + 200ms);
  EXPECT_EQ(patience.tick(start + 230ms), 30ms);
  EXPECT_EQ(patience.tick(start + 280ms), 80ms);
  EXPECT_EQ(patience.tick(start + 280ms), 80ms);
}

TEST(StallTimer, CountsLittleOfATimeInWhichItWasNotAsked) {
  const StallTimer::Clock::time_point start{1h};
  StallTimer patience(start, 100ms);
  EXPECT_EQ(patience.tick(start + 50ms), 50ms);
  EXPECT_EQ(patience.tick(start + 10min), 150ms);
  patience.moved(start + 10min);
  EXPECT_EQ(patience.tick(start + 20min), 100ms);
}

}  // namespace
}  // namespace p2p::engine
