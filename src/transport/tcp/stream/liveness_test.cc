// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream/liveness.h"

#include <gtest/gtest.h>

namespace p2p::tcp {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTime{3000};

TEST(Liveness, LooksWhenTheTimeOfSilenceIsOver) {
  const Clock::time_point answered = Clock::now();
  EXPECT_EQ(next_look(answered, answered, kTime), answered + 750ms);
  EXPECT_EQ(next_look(answered + 2250ms, answered, kTime), answered + kTime);
  // The last answer came between two looks.
  EXPECT_EQ(next_look(answered + 2700ms, answered, kTime), answered + kTime);
  EXPECT_EQ(next_look(answered + 2999ms, answered, kTime), answered + kTime);
}

}  // namespace
}  // namespace p2p::tcp
