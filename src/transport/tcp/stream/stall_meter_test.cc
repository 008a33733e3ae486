// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream/stall_meter.h"

#include <gtest/gtest.h>

namespace p2p::tcp {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMegabyte = 1'000'000;
constexpr auto kLook = StallMeter::kLook;

// A stream that moves so much between two looks, and always has more to send.
class StallMeterTest : public ::testing::Test {
 protected:
  void look(std::uint64_t moved, int times = 1) {
    for (int i = 0; i != times; ++i) {
      traffic_.acknowledged += moved;
      meter_.look(now_ += kLook, traffic_);
    }
  }
  std::chrono::milliseconds stalled() const { return meter_.stalled_for(now_); }

  StallMeter meter_;
  StallMeter::Clock::time_point now_ = StallMeter::Clock::now();
  socket::Traffic traffic_{.in_flight = kMegabyte, .unsent = 4 * kMegabyte, .window = 8 * kMegabyte};
};

TEST_F(StallMeterTest, WhatMovesIsNotStalled) {
  look(4 * kMegabyte, 10);
  EXPECT_EQ(stalled(), 0ms);
}

TEST_F(StallMeterTest, NothingIsAnsweredAnyMore) {
  look(0);  // the first look has nothing to compare with
  EXPECT_EQ(stalled(), 0ms);
  look(0, 4);
  EXPECT_EQ(stalled(), 4 * kLook);
  look(1);  // an answer, and no rate is known that would be much more
  EXPECT_EQ(stalled(), 0ms);
}

TEST_F(StallMeterTest, AFiftiethOfTheRateIsAsGoodAsNothing) {
  look(4 * kMegabyte, 3);
  look(4 * kMegabyte / 50, 4);
  EXPECT_EQ(stalled(), 4 * kLook);
  look(4 * kMegabyte / 4);
  EXPECT_EQ(stalled(), 0ms);
}

TEST_F(StallMeterTest, AFifthIsNot) {
  look(4 * kMegabyte, 3);
  look(4 * kMegabyte / 5, 10);
  EXPECT_EQ(stalled(), 0ms);
}

TEST_F(StallMeterTest, TheEndOfWhatIsSentMayStandStill) {
  look(4 * kMegabyte, 3);
  traffic_.unsent = 0;
  look(0, 3);
  EXPECT_EQ(stalled(), 3 * kLook);
}

TEST_F(StallMeterTest, WhatStaysSlowBecomesTheUsual) {
  look(4 * kMegabyte, 3);
  look(4 * kMegabyte / 50, 80);
  EXPECT_EQ(stalled(), 0ms);
}

TEST_F(StallMeterTest, ThereIsLittleToSend) {
  look(4 * kMegabyte, 3);
  traffic_.in_flight = 4096;
  traffic_.unsent = 0;
  look(kMegabyte);
  look(8192, 10);
  EXPECT_EQ(stalled(), 0ms);
}

// Each answer takes longer than a look.
TEST_F(StallMeterTest, MessagesOverALongPathAfterMuchMoreAreNoStall) {
  look(4 * kMegabyte, 3);
  traffic_.in_flight = 100;
  traffic_.unsent = 0;
  traffic_.round_trip = kLook;
  look(50, 20);
  EXPECT_EQ(stalled(), 0ms);
}

TEST_F(StallMeterTest, OverALongPathNothingIsTakenForNothingTooSoon) {
  traffic_.round_trip = 2 * kLook;
  for (int i = 0; i != 10; ++i) {
    look(0, 2);
    look(4 * kMegabyte);
  }
  EXPECT_EQ(stalled(), 0ms);
  look(0, 8);
  EXPECT_GE(stalled(), 4 * kLook);
}

// Its kernel answers, and has room for nothing more; or for as much as its thread takes.
TEST_F(StallMeterTest, APeerThatDoesNotTakeItsBytesIsNoStall) {
  look(4 * kMegabyte, 3);
  traffic_.in_flight = 0;
  traffic_.window = 0;
  look(0, 10);
  EXPECT_EQ(stalled(), 0ms);
  traffic_.in_flight = 32 << 10;
  traffic_.window = 64 << 10;
  look(64 << 10, 10);
  EXPECT_EQ(stalled(), 0ms);
}

TEST_F(StallMeterTest, AFullWindowOnASlowPathIsOne) {
  traffic_.in_flight = traffic_.window;
  look(4 * kMegabyte, 3);
  look(4 * kMegabyte / 50, 4);
  EXPECT_EQ(stalled(), 4 * kLook);
}

TEST_F(StallMeterTest, ARestEndsIt) {
  look(0, 5);
  meter_.rest();
  EXPECT_EQ(stalled(), 0ms);
  now_ += 10s;
  look(0);
  EXPECT_EQ(stalled(), 0ms);
}

}  // namespace
}  // namespace p2p::tcp
