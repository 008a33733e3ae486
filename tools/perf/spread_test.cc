// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "spread.h"

#include <gtest/gtest.h>

#include <vector>

namespace p2p::perf {
namespace {

using std::chrono::milliseconds;
using Time = std::chrono::steady_clock::time_point;

constexpr std::uint64_t kBytes = 1'000'000;  // of a transfer: one in a millisecond is 1 GB/s

TEST(Spread, OfFiveRounds) {
  std::vector<Time> ends;
  Time now;
  for (const int took : {1, 2, 4, 5, 8}) {
    for (int i = 0; i != 3; ++i) ends.push_back(now += milliseconds(took));
  }
  const Spread spread = spread_of(ends, Time{}, kBytes, 2);
  EXPECT_DOUBLE_EQ(spread.least, 0.125);
  EXPECT_DOUBLE_EQ(spread.median, 0.25);
  EXPECT_DOUBLE_EQ(spread.most, 1);
}

// Four at a time, each four of which end within a microsecond: as each round, so all.
TEST(Spread, OfTransfersThatEndTogether) {
  std::vector<Time> ends;
  for (int four = 1; four <= 3; ++four) {
    for (int i = 0; i != 4; ++i)
      ends.push_back(Time(milliseconds(4 * four) + std::chrono::nanoseconds(300 * i)));
  }
  const Spread spread = spread_of(ends, Time{}, kBytes, 4);
  EXPECT_NEAR(spread.least, 1, 0.01);
  EXPECT_NEAR(spread.most, 1, 0.01);
}

TEST(Spread, OfFewerThanAreInFlightIsTheirRate) {
  const std::vector<Time> ends{Time(milliseconds(9)), Time(milliseconds(10))};
  const Spread spread = spread_of(ends, Time{}, kBytes, 8);
  EXPECT_DOUBLE_EQ(spread.least, 0.2);
  EXPECT_DOUBLE_EQ(spread.most, 0.2);
  EXPECT_EQ(spread_of({}, Time{}, kBytes, 8).most, 0);
}

}  // namespace
}  // namespace p2p::perf
