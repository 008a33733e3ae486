// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A lane whose channels go over rails of unlike speeds.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/schedule/lane_testing.h"
#include "support/eventually.h"

namespace p2p::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kOneBatch = std::size_t{256} << 10;

// Two channels that are moved by hand, with room for a batch each.
class RailsTest : public LaneTest {
 protected:
  struct Rail {
    std::shared_ptr<Script> script = std::make_shared<Script>();
    std::shared_ptr<ChannelRunner> runner;
  };

  void SetUp() override {
    LaneTest::SetUp();
    for (int tries = 0; tries != 100; ++tries) {
      make_rails();
      if (learn()) return;  // else the machine was busy, and the times tell nothing
      stop_rails();
    }
    FAIL() << "never a quiet moment";
  }

  void make_rails() {
    lane_ = std::make_shared<Lane>(Policy::spread({kOneBatch, 8}, 50us));
    for (Rail* rail : {&slow_, &fast_}) {
      rail->script->window = 1;
      ChannelRunner::Setup setup{.rail = rail == &slow_ ? slow_name_ : "fast",
                                 .control = nullptr,
                                 .channel = std::make_unique<CopyChannel>(rail->script, "copy"),
                                 .report = nullptr};
      rail->runner = std::make_shared<ChannelRunner>(*thread_, lane_, std::move(setup));
      turn(*rail);  // it comes up
    }
  }

  void stop_rails() {
    for (const Rail* rail : {&slow_, &fast_}) rail->runner->stop({ErrorCode::kCancelled, "the test ends"});
  }

  void TearDown() override {
    stop_rails();
    LaneTest::TearDown();
  }

  static void turn(const Rail& rail) {
    PostUnlockActions actions;
    rail.runner->try_turn(actions);
    actions.run();
  }

  // One batch each, which takes the slow one many times as long, and long enough to matter. False if this
  // thread had to wait for the processor.
  bool learn() {
    slow_.script->hold = true;
    const auto state = submit(1, 2 * kOneBatch);
    const auto start = Clock::now();
    turn(slow_);
    turn(fast_);
    const auto turns = Clock::now() - start;
    const auto end = Clock::now() + 50 * turns + 50ms;
    EXPECT_EQ(slow_.script->posts, 1U);
    EXPECT_EQ(fast_.script->posts, 1U);
    while (Clock::now() < end) turn(slow_);
    slow_.script->hold = false;
    turn(slow_);
    EXPECT_TRUE(state->wait(0s));
    slow_.script->posts = fast_.script->posts = 0;
    return turns < 15ms && Clock::now() < start + 950ms;
  }

  std::unique_ptr<Worker> thread_ = *Worker::make(50us);
  Rail slow_, fast_;
  std::string slow_name_ = "slow";
};

// Two of the many channels over one rail that a long path has.
class OneRailTest : public RailsTest {
 protected:
  OneRailTest() { slow_name_ = "fast"; }
};

TEST_F(RailsTest, ASlowOneLeavesTheLastBatchToAFastOne) {
  const auto state = submit(1, kOneBatch);
  turn(slow_);
  EXPECT_EQ(slow_.script->posts, 0U);
  EXPECT_FALSE(state->done());
  turn(fast_);
  EXPECT_EQ(fast_.script->posts, 1U);
  ASSERT_TRUE(state->wait(0s));
  expect_arrived(1, kOneBatch);
}

TEST_F(RailsTest, OneOfUnknownSpeedHasOneBatchUntilItIsKnown) {
  stop_rails();
  make_rails();
  slow_.script->window = 4;
  slow_.script->hold = true;
  const auto state = submit(1, 4 * kOneBatch);
  turn(slow_);
  turn(slow_);
  EXPECT_EQ(slow_.script->posts, 1U);
  for (int i = 0; i != 4; ++i) turn(fast_);
  slow_.script->hold = false;
  turn(slow_);
  ASSERT_TRUE(state->wait(0s));
  expect_arrived(1, 4 * kOneBatch);
}

TEST_F(RailsTest, ShortItemsGoWithoutKnowingTheSpeed) {
  stop_rails();
  make_rails();
  slow_.script->window = 16;
  slow_.script->hold = true;
  std::vector<std::shared_ptr<TransferState>> states(16);
  for (auto& state : states) state = submit(1, 60 << 10);  // the fast one takes some of them
  turn(slow_);
  EXPECT_EQ(slow_.script->posts + fast_.script->posts, states.size());
  EXPECT_GT(slow_.script->posts * (60 << 10), kOneBatch);
  slow_.script->hold = false;
  turn(slow_);
  for (const auto& state : states) EXPECT_TRUE(state->wait(0s));
}

// What a channel has that stands still, of a lane with one of another rail, or of the same.
class StalledTest : public LaneTest {
 protected:
  void stall(const std::string& other_rail) {
    stalled_ = add_channel("stalled");
    other_ = add_channel(other_rail);
    stalled_->hold = true;
    other_->hold = true;
    stalled_->stalled_for = 300ms;
  }

  void expect_given_up(bool given_up) {
    const auto state = submit(8, 4096);
    ASSERT_TRUE(testing::eventually([this] { return stalled_->posts != 0; }));
    other_->hold = false;
    lane_->runners().give_up_stalled();
    if (!given_up) stalled_->hold = false;
    ASSERT_TRUE(state->wait(10s));
    EXPECT_TRUE(state->status());
    EXPECT_EQ(lane_->runners().size(), given_up ? 1U : 2U);
    EXPECT_EQ(lane_->retried() != 0, given_up);
    expect_arrived(8, 4096);
  }

  std::shared_ptr<Script> stalled_, other_;
};

TEST_F(StalledTest, GoesAgainOverAnotherRail) {
  stall("other");
  expect_given_up(true);
}

TEST_F(StalledTest, StaysForLessThanTheTime) {
  stall("other");
  stalled_->stalled_for = 299ms;
  expect_given_up(false);
}

TEST_F(StalledTest, StaysIfThereIsNoOtherRail) {
  stall("stalled");
  expect_given_up(false);
}

TEST_F(StalledTest, StaysIfNothingWasHeardOfTheOther) {
  stall("other");
  other_->heard = false;
  expect_given_up(false);
}

TEST_F(StalledTest, GoesAgainOverAnotherThatWasAtRestButAnswers) {
  stall("other");
  other_->heard = false;
  other_->answers = true;
  other_->hold = false;
  const auto state = submit(8, 4096);
  ASSERT_TRUE(testing::eventually([this] {
    lane_->runners().give_up_stalled();
    return lane_->runners().size() == 1;
  }));
  ASSERT_TRUE(state->wait(10s));
  EXPECT_TRUE(state->status());
  expect_arrived(8, 4096);
}

TEST_F(StalledTest, StaysIfTheOtherStandsStillToo) {
  stall("other");
  other_->stalled_for = 1ms;
  expect_given_up(false);
}

TEST_F(OneRailTest, OnAShortPathTheyAreTakenForAlike) {
  const auto state = submit(1, kOneBatch);
  turn(slow_);
  EXPECT_EQ(slow_.script->posts, 1U);
  turn(slow_);
  EXPECT_TRUE(state->wait(0s));
}

TEST_F(OneRailTest, OneThatLosesMoreLeavesTheLastOfTheWork) {
  lane_->cut_small();
  const auto state = submit(1, kOneBatch);
  turn(slow_);
  EXPECT_EQ(slow_.script->posts, 0U);
  for (int round = 0; round != 20; ++round) turn(fast_);
  ASSERT_TRUE(state->wait(0s));
  expect_arrived(1, kOneBatch);
}

TEST_F(RailsTest, ASlowOneTakesItIfTheFastOneIsLost) {
  fast_.script->hold = true;
  const auto state = submit(1, kOneBatch);
  turn(fast_);
  turn(slow_);
  EXPECT_EQ(slow_.script->posts, 0U);
  fast_.runner->stop({ErrorCode::kPeerGone, "lost, as the test asked"});
  const auto other = submit(1, kOneBatch);
  turn(slow_);
  EXPECT_EQ(slow_.script->posts, 1U);
  ASSERT_TRUE(other->wait(0s));
  expect_arrived(1, kOneBatch);
}

}  // namespace
}  // namespace p2p::engine
