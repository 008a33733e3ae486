// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/lane.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "engine/schedule/lane_testing.h"
#include "support/eventually.h"

namespace p2p::engine {
namespace {

using testing::eventually;

TEST_F(LaneTest, MovesSmallAndLargeOverSeveralChannels) {
  const auto one = add_channel();
  const auto two = add_channel();
  for (const auto& [count, size] : std::vector<std::pair<std::size_t, std::size_t>>{
           {1, 1}, {1, 4096}, {1, 4097}, {1000, 100}, {3, 1 << 20}}) {
    const auto state = submit(count, size);
    const Status status = state->wait(20s);
    ASSERT_TRUE(status) << status.error().message;
    expect_arrived(count, size);
  }
  for (const auto& script : {one, two}) {
    script->posts = 0;
    script->hold = true;
  }
  const auto state = submit(1, 1 << 20);
  EXPECT_TRUE(eventually([&] { return one->posts == one->window && two->posts == two->window; }));
  for (const auto& script : {one, two}) script->hold = false;
  lane_->wake_all();
  ASSERT_TRUE(state->wait(20s));
  expect_arrived(1, 1 << 20);
}

TEST_F(LaneTest, OneTransferIsSharedOutToHalfOfTheChannels) {
  lane_ = std::make_shared<Lane>(Policy::spread({1 << 20, 8}, 50us));
  std::vector<std::shared_ptr<Script>> scripts;
  const auto posts = [&] {
    std::size_t sum = 0;
    for (const auto& script : scripts) sum += script->posts.exchange(0);
    return sum;
  };
  const auto move = [&] {
    const auto state = submit(1, 1 << 20);
    ASSERT_TRUE(state->wait(20s));
    expect_arrived(1, 1 << 20);
  };
  for (int i = 0; i < 2; ++i) scripts.push_back(add_channel());
  ASSERT_NO_FATAL_FAILURE(move());
  EXPECT_EQ(posts(), 1U);
  for (int i = 0; i < 6; ++i) scripts.push_back(add_channel());
  ASSERT_NO_FATAL_FAILURE(move());
  EXPECT_EQ(posts(), 7U);  // 256, 192, 144, three times 128 and 48 KiB
}

// Also where there are more channels than he could look at all of. No other thread moves anything here.
TEST_F(LaneTest, AWaitingCallerDrivesTheChannelThatStartedHisTransfer) {
  lane_ = std::make_shared<Lane>(Policy::spread({4096, 8}, 20s));
  for (int i = 0; i != 6; ++i) add_unattended_channel()->looks = 40;
  for (int i = 0; i < 100; ++i) {
    const auto state = submit(1, 64);
    assist(*state);
    EXPECT_TRUE(state->done());
    expect_arrived(1, 64);
  }
}

// One after the other they find the same threads awake; side by side they are spread.
TEST_F(LaneTest, WhileNothingIsUnderWayTheFirstChannelServes) {
  std::vector<std::shared_ptr<Script>> scripts;
  for (int i = 0; i != 3; ++i) scripts.push_back(add_unattended_channel());
  PostUnlockActions actions;
  for (std::size_t i = 1; i <= 10; ++i) {
    const auto state = submit(1, 64);
    for (const auto& runner : runners_) runner->try_turn(actions);
    EXPECT_TRUE(state->done());
    EXPECT_EQ(scripts[0]->posts, i);
  }
  for (const auto& script : scripts) script->hold = true;
  std::vector<std::shared_ptr<TransferState>> states;
  for (int i = 0; i < 9; ++i) states.push_back(submit(1, 64));
  for (const auto& script : scripts) {
    EXPECT_GE(script->posts, script == scripts[0] ? 12U : 2U);
    script->hold = false;
  }
  for (const auto& runner : runners_) runner->try_turn(actions);
  for (const auto& state : states) EXPECT_TRUE(state->done());
}

TEST_F(LaneTest, AfterAHigherClassALowerOneKeepsItsQueueShort) {
  lane_ = std::make_shared<Lane>(Policy::spread({1 << 20, 8}, 50us));
  const auto channel = add_channel();
  channel->window = 100;
  const auto posts = [&] {
    channel->posts = 0;
    channel->hold = true;
    const auto state = submit(1, 8 << 20);
    EXPECT_TRUE(eventually([&] { return channel->posts != 0; }));
    lane_->wake_all();
    std::promise<void> turned;  // whatever it was given by then it had taken
    workers_[0]->post([&](PostUnlockActions&) { turned.set_value(); });
    turned.get_future().wait();
    const std::size_t count = channel->posts;
    channel->hold = false;
    lane_->wake_all();
    EXPECT_TRUE(state->wait(20s));
    expect_arrived(1, 8 << 20);
    return count;
  };
  priority_ = Priority::kLow;
  EXPECT_GE(posts(), 4U);  // as many as one turn gives
  priority_ = Priority::kHigh;
  ASSERT_TRUE(submit(1, 64)->wait(20s));
  priority_ = Priority::kLow;
  EXPECT_LE(posts(), 3U);
}

TEST_F(LaneTest, APacedTransferRestsUntilItIsDue) {
  std::atomic<int> alarms{0};
  lane_ = std::make_shared<Lane>(Policy::spread({1 << 20, 8}, 50us), nullptr, nullptr,
                                 [&](std::chrono::nanoseconds time, const std::function<void()>&) {
                                   EXPECT_GT(time, 1h);
                                   ++alarms;
                                 });
  const auto channel = add_channel();
  rate_ = 1;
  const auto state = submit(1, 1 << 20);
  EXPECT_TRUE(eventually([&] { return alarms == 1; }));
  EXPECT_EQ(channel->posts, 1U);
  rate_ = 0;
  const auto quick = submit(1, 1 << 20);  // is not held up by it
  EXPECT_TRUE(quick->wait(20s));
  EXPECT_FALSE(state->done());
  EXPECT_EQ(alarms, 1);
  state->cancel();
  lane_->wake_all();
  EXPECT_EQ(state->wait(20s).error().code, ErrorCode::kCancelled);
}

TEST_F(LaneTest, SendsALostChannelsPiecesOverAnother) {
  const auto lost = add_channel();
  add_channel();
  lost->fail_after = 3;
  const auto state = submit(400, 4096);
  const Status status = state->wait(20s);
  ASSERT_TRUE(status) << status.error().message;
  expect_arrived(400, 4096);
}

/// Channels come up one after the other, and each is lost with the first batch that it is given.
class StuckTest : public LaneTest {
 protected:
  void begin(std::chrono::milliseconds patience) {
    Policy policy = Policy::spread({4096, 8}, 50us);
    policy.patience = patience;
    lane_ = std::make_shared<Lane>(policy);
    state_ = submit(1, 64);
  }

  void lose_one() {
    EXPECT_EQ(finisher_->was_rerouted, 0U);
    add_channel("", 0);
    ++lost_;
    EXPECT_TRUE(eventually([&] { return lane_->retried() == lost_; }));
  }

  void expect_was_rerouted() {
    EXPECT_EQ(state_->wait(20s).error().code, ErrorCode::kPeerGone);
    EXPECT_EQ(finisher_->was_rerouted, 1U);
  }

  std::shared_ptr<TransferState> state_;
  unsigned lost_ = 0;
};

TEST_F(StuckTest, WhatManyChannelsAreLostWithIsDiverted) {
  begin(1h);
  for (int i = 0; i <= WorkItem::kMostRetries; ++i) lose_one();
  expect_was_rerouted();
}

TEST_F(StuckTest, WhatIsStuckForLongIsDiverted) {
  constexpr std::chrono::milliseconds kPatience{200};
  begin(kPatience);
  lose_one();
  EXPECT_FALSE(state_->wait(kPatience));
  lose_one();
  expect_was_rerouted();
}

// What came of a batch whose channel is found lost when its completions of that turn have been taken already,
// while another channel serves.
class LostLateTest : public LaneTest {
 protected:
  Status outcome(bool cancels) {
    const auto lost = add_channel();
    lost->hold = true;
    const auto state = submit(1, 64);
    EXPECT_TRUE(eventually([&] { return lost->posts == 1; }));
    add_channel();
    if (cancels) state->cancel();
    lost->fail_late = true;
    lane_->wake_all();
    return state->wait(20s);
  }
};

TEST_F(LostLateTest, TheBatchGoesOverTheOther) {
  const Status status = outcome(false);
  ASSERT_TRUE(status) << status.error().message;
  expect_arrived(1, 64);
}

TEST_F(LostLateTest, ACancelledTransferIsCancelled) {
  const Status status = outcome(true);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled) << status.error().message;
}

TEST_F(LaneTest, WhatIsGivenBackToAClosedLaneFails) {
  const auto channel = add_channel();
  channel->on_post = [this] {
    PostUnlockActions actions;
    lane_->close({ErrorCode::kPeerGone, "the test closes it"}, actions);
  };
  const Status status = submit(1, 64)->wait(20s);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kPeerGone) << status.error().message;
}

TEST_F(LaneTest, TellsARailOnceAndOnlyWhileItHasAChannel) {
  EXPECT_EQ(lane_->runners().describe(), "0 channels");
  const auto lost = add_channel("nic1");
  EXPECT_EQ(lane_->runners().describe(), "1 channel: copy over nic1");
  const auto one = add_channel("nic0");
  const auto two = add_channel("nic0");
  EXPECT_EQ(lane_->runners().describe(), "3 channels: copy over nic0; copy over nic1");
  one->hold = two->hold = true;  // so that the other one is needed
  lost->fail_after = 0;
  const auto state = submit(400, 4096);
  EXPECT_TRUE(eventually([&] { return lane_->runners().describe() == "2 channels: copy over nic0"; }));
  one->hold = two->hold = false;
  lane_->wake_all();
  EXPECT_TRUE(state->wait(20s));
}

TEST_F(LaneTest, WithoutAChannelWorkWaitsUntilTheLaneIsGivenUp) {
  const auto lost = add_channel();
  lost->fail_after = 2;
  const auto state = submit(400, 4096);
  EXPECT_TRUE(eventually([&] { return lane_->interrupted(); }));
  EXPECT_FALSE(state->wait(1ms));
  EXPECT_EQ(finisher_->reroutes, 0U);
  PostUnlockActions actions;
  lane_->give_up({ErrorCode::kPeerGone, "given up, as the test asked"}, actions);
  actions.run();
  EXPECT_GE(finisher_->reroutes, 2U) << "what was lost, and what was not cut up yet";
  EXPECT_EQ(state->wait(20s).error().code, ErrorCode::kPeerGone);
  const auto before = finisher_->reroutes.load();
  EXPECT_FALSE(submit(1, 10)->wait(20s));
  EXPECT_FALSE(submit(1, 10, std::make_shared<TestStreamDependency>())->wait(20s));
  EXPECT_EQ(finisher_->reroutes, before + 2) << "what comes later goes the same way";
}

TEST_F(LaneTest, WhatIsUnderWayTakesADetourOnceItIsBack) {
  const auto script = add_channel();
  script->hold = true;
  const auto state = submit(1, 100);
  ASSERT_TRUE(eventually([&] { return script->posts == 1; }));
  PostUnlockActions actions;
  lane_->give_up({ErrorCode::kPeerGone, "given up, as the test asked"}, actions);
  actions.run();
  EXPECT_FALSE(state->wait(1ms)) << "its channel is still at it";
  EXPECT_EQ(finisher_->reroutes, 0U);
  script->fail_late = true;
  script->fail_after = 0;
  lane_->wake_all();
  EXPECT_TRUE(eventually([&] { return finisher_->reroutes == 1; }));
}

TEST_F(LaneTest, TheEndOfTheConnectionEndsDetours) {
  const auto dependency = std::make_shared<TestStreamDependency>();
  for (const bool dependent : {false, true}) {
    PostUnlockActions actions;
    if (!dependent) lane_->give_up({ErrorCode::kPeerGone, "given up, as the test asked"}, actions);
    lane_->close({ErrorCode::kCancelled, "closed, as the test asked"}, actions);
    actions.run();
    const auto state = submit(1, 100, dependent ? dependency : nullptr);
    EXPECT_EQ(state->wait(20s).error().code, ErrorCode::kCancelled);
  }
  EXPECT_EQ(finisher_->reroutes, 0U);
}

TEST_F(LaneTest, CancelDropsWhatIsNotUnderWay) {
  const auto script = add_channel();
  script->hold = true;
  const auto state = submit(1000, 4096);
  ASSERT_TRUE(eventually([&] { return script->posts >= script->window; }));
  state->set_cancel([&] { lane_->wake_all(); });
  state->cancel();
  EXPECT_EQ(state->wait(20ms).error().code, ErrorCode::kTimedOut);  // a window's worth is under way
  script->hold = false;
  lane_->wake_all();
  const Status status = state->wait(20s);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
  EXPECT_LE(script->posts, script->window + 1);
}

TEST_F(LaneTest, AbandoningDoesNotWaitForTheChannel) {
  const auto script = add_channel();
  script->hold = true;
  script->stuck = true;
  const auto state = submit(1000, 4096);
  EXPECT_TRUE(eventually([&] { return script->posts == 1; }));
  auto asked = std::async(std::launch::async, [&] { runners_[0]->abandon(state); });
  EXPECT_EQ(asked.wait_for(20s), std::future_status::ready);
  EXPECT_EQ(script->abandoned, 0U);
  script->stuck = false;
  script->stuck.notify_all();
  EXPECT_TRUE(eventually([&] { return script->abandoned != 0; }));
  script->hold = false;
  lane_->wake_all();
  EXPECT_TRUE(state->wait(20s));
}

TEST_F(LaneTest, ALongTransferDoesNotHoldUpAShortOne) {
  const auto script = add_channel();
  script->hold = true;
  const auto list_long = submit(1, 16 << 20);
  auto source = std::move(source_);
  auto target = std::move(target_);
  const auto list_short = submit(1, 100);
  std::size_t posts = 0;
  list_short->on_done([&] { posts = script->posts; });
  script->hold = false;
  lane_->wake_all();
  ASSERT_TRUE(list_short->wait(20s));
  ASSERT_TRUE(list_long->wait(20s));
  EXPECT_LT(posts, (16U << 20) / 4096);
}

// Copies by a device are started and watched by callers; the worker sees to those that nobody waits for.
TEST_F(LaneTest, ADevicesCopiesEndWithAndWithoutAWaitingCaller) {
  lane_ = std::make_shared<Lane>(Policy::by_caller({1 << 20, 8}, 50us));
  const auto one = add_channel();
  const auto two = add_channel();
  for (int round = 0; round < 200; ++round) {
    const auto state = submit(1, 1000);
    if (round % 2 == 0) assist(*state);
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (!state->done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    ASSERT_TRUE(state->done()) << round;
    expect_arrived(1, 1000);
  }
  one->hold = two->hold = true;
  const auto held = submit(1, 1000);
  EXPECT_FALSE(held->done());
  one->hold = two->hold = false;
  ASSERT_TRUE(held->wait(20s));  // without a caller's help: nothing tells it how to
}

class DeviceLaneTest : public LaneTest {
 protected:
  // Callers look on for far longer than a copy takes here, also where a sanitizer makes each look slow.
  DeviceLaneTest() { lane_ = std::make_shared<Lane>(Policy::by_caller({64 << 20, 4096}, 20ms)); }
};

// A worker that looked for work while callers start short copies would take theirs, and go on doing so, since
// what it has taken keeps it awake.
TEST_F(DeviceLaneTest, IdleChannelsAreLeftAloneWhileCallersStartCopies) {
  workers_.clear();
  const auto thread = *Worker::make(50us);
  auto script = std::make_shared<Script>();
  ChannelRunner::Setup setup{"", nullptr, std::make_unique<CopyChannel>(script, "copy"), nullptr};
  const auto runner = std::make_shared<ChannelRunner>(*thread, lane_, std::move(setup));
  const auto now = Lane::Clock::now();
  EXPECT_FALSE(runner->left_to_caller(now));
  lane_->note_call(now);
  EXPECT_TRUE(runner->left_to_caller(now + 10us));
  EXPECT_FALSE(runner->left_to_caller(now + 10ms));
  script->hold = true;
  const auto held = submit(1, 1000);  // no channel is up yet: it waits
  PostUnlockActions actions;
  EXPECT_TRUE(runner->turn_if_due(now + 10ms, actions));  // the thread brings the channel up and takes it
  EXPECT_EQ(script->posts, 1U);
  EXPECT_FALSE(runner->left_to_caller(now + 10us));
  script->hold = false;
  EXPECT_EQ(runner->try_turn(actions), Turn::kMoved);  // a caller ends it
  EXPECT_TRUE(held->done());
  const auto before = Lane::Clock::now();
  submit(1, 1000);
  EXPECT_TRUE(runner->left_to_caller(before));
  runner->stop({ErrorCode::kCancelled, "the test ends"});
}

TEST_F(DeviceLaneTest, ShortCopiesStayWithTheirCallers) {
  const auto one = add_channel();
  const auto two = add_channel();
  constexpr std::size_t kTransfers = 1000;
  constexpr std::size_t kLong = 8000;  // blocks: more than a caller starts
  const auto list = submit(kLong, 1024);
  EXPECT_EQ(started_, nullptr);
  ASSERT_TRUE(list->wait(20s));
  ASSERT_NO_FATAL_FAILURE(expect_arrived(kLong, 1024));
  one->looks = two->looks = 40;
  bool stayed = false;
  for (int round = 0; round != 20 && !stayed;
       ++round) {  // workers take what a busy machine keeps from callers
    const std::size_t before = two->posts;
    std::size_t finished_by_caller = 0;
    for (std::size_t i = 0; i < kTransfers; ++i) {
      const auto state = submit(1, 64);
      assist(*state);
      finished_by_caller += state->done() ? 1 : 0;
      ASSERT_TRUE(state->wait(20s));
      ASSERT_NO_FATAL_FAILURE(expect_arrived(1, 64));
    }
    stayed = two->posts - before < kTransfers / 5 && finished_by_caller > kTransfers / 2;
  }
  EXPECT_TRUE(stayed);
}

TEST_F(DeviceLaneTest, OneLongCopyIsStartedByItsCaller) {
  add_channel();
  add_channel();
  const auto copy = submit(1, 16 << 20);
  EXPECT_NE(started_, nullptr);
  ASSERT_TRUE(copy->wait(20s));
  ASSERT_NO_FATAL_FAILURE(expect_arrived(1, 16 << 20));
}

// However many batches and channels there are, it takes one look that finds the dependency open.
TEST_F(LaneTest, NothingIsPostedBeforeTheGateOpens) {
  const auto one = add_channel();
  const auto two = add_channel();
  for (const std::size_t size : {std::size_t{100}, std::size_t{1} << 20}) {
    const auto dependency = std::make_shared<TestStreamDependency>();
    one->posts = two->posts = 0;
    const auto state = submit(1, size, dependency);
    EXPECT_TRUE(eventually([&] { return dependency->looks > 3; }));  // a worker looks, nobody else would
    EXPECT_EQ(one->posts + two->posts, 0U);
    EXPECT_FALSE(state->done());
    dependency->opened = true;
    const Status status = state->wait(20s);
    ASSERT_TRUE(status) << status.error().message;
    expect_arrived(1, size);
    EXPECT_EQ(one->posts + two->posts, (size + 4095) / 4096);
    EXPECT_EQ(dependency->seen_open, 1U);
  }
}

TEST_F(LaneTest, AnOpenGateCostsNothing) {
  const auto script = add_channel();
  const auto dependency = std::make_shared<TestStreamDependency>();
  dependency->opened = true;
  ASSERT_TRUE(submit(1, 100, dependency)->wait(20s));
  ASSERT_TRUE(submit(1, 100000, dependency)->wait(20s));
  EXPECT_EQ(dependency->looks, 1U);
}

TEST_F(LaneTest, CancelledBehindAShutGateItEndsAtOnce) {
  const auto script = add_channel();
  const auto dependency = std::make_shared<TestStreamDependency>();
  const auto state = submit(100, 4096, dependency);
  state->set_cancel([&] { lane_->wake_all(); });
  state->cancel();
  const Status status = state->wait(20s);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(script->posts, 0U);
  EXPECT_TRUE(eventually([&] { return dependency.use_count() == 1; }));  // nothing looks at it any more
}

// More of them than a channel takes and than are looked at in one turn.
TEST_F(LaneTest, ShutGatesHoldUpNobodyElse) {
  const auto script = add_channel();
  std::vector<std::shared_ptr<TestStreamDependency>> gates;
  std::vector<std::shared_ptr<TransferState>> waiting;
  std::vector<std::vector<std::byte>> kept;
  const auto keep = [&] {
    kept.push_back(std::move(source_));
    kept.push_back(std::move(target_));
  };
  for (int i = 0; i < 50; ++i) {
    gates.push_back(std::make_shared<TestStreamDependency>());
    waiting.push_back(submit(1, 5000, gates.back()));
    keep();
  }
  ASSERT_TRUE(submit(1, 100)->wait(20s));
  keep();
  ASSERT_TRUE(submit(20, 10000)->wait(20s));
  keep();
  gates.front()->broken = true;
  EXPECT_EQ(waiting.front()->wait(20s).error().message, "the stream failed");
  gates[30]->opened = true;
  EXPECT_TRUE(waiting[30]->wait(20s));
  for (std::size_t i = 1; i < waiting.size(); ++i) EXPECT_EQ(waiting[i]->done(), i == 30) << i;
  for (const auto& dependency : gates) dependency->opened = true;
  for (std::size_t i = 1; i < waiting.size(); ++i) EXPECT_TRUE(waiting[i]->wait(20s)) << i;
}

TEST_F(LaneTest, AnotherChannelLooksAtTheGatesOfALostOne) {
  const auto lost = add_channel();
  const auto other = add_channel();
  const auto dependency = std::make_shared<TestStreamDependency>();
  const auto state = submit(1, 100, dependency);
  const auto source = std::move(source_);
  const auto target = std::move(target_);
  other->hold = true;  // so that the first one is needed
  lost->fail_after = 0;
  const auto across = submit(400, 4096);
  EXPECT_TRUE(eventually([&] { return lane_->runners().size() == 1; }));
  other->hold = false;
  lane_->wake_all();
  ASSERT_TRUE(across->wait(20s));
  dependency->opened = true;
  EXPECT_TRUE(state->wait(20s));
}

TEST_F(LaneTest, ClosingFailsWhatWaitsForAGate) {
  add_channel();
  const auto dependency = std::make_shared<TestStreamDependency>();
  const auto state = submit(1, 100, dependency);
  EXPECT_TRUE(eventually([&] { return dependency->looks > 3; }));
  PostUnlockActions actions;
  lane_->close({ErrorCode::kPeerGone, "closed, as the test asked"}, actions);
  actions.run();
  EXPECT_EQ(state->wait(20s).error().code, ErrorCode::kPeerGone);
}

TEST_F(DeviceLaneTest, AWaitingCallerLooksAtGates) {
  const auto script = add_channel();
  for (int round = 0; round < 50; ++round) {
    const auto dependency = std::make_shared<TestStreamDependency>();
    const auto state = submit(1, 1000, dependency);
    auto opener = std::async(std::launch::async, [&] {
      eventually([&] { return dependency->looks > 2; });
      dependency->opened = true;
    });
    ASSERT_NE(started_, nullptr);
    assist(*state);
    opener.wait();
    ASSERT_TRUE(state->wait(20s)) << round;
    expect_arrived(1, 1000);
  }
}

}  // namespace
}  // namespace p2p::engine
