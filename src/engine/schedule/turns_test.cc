// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <atomic>
#include <memory>
#include <vector>

#include "engine/schedule/lane_testing.h"
#include "support/eventually.h"

namespace p2p::engine {
namespace {

using testing::eventually;

// The thread's other channels wait no longer than for so many bytes, however much is queued for one.
TEST_F(LaneTest, OneTurnOfABusyChannelIsBounded) {
  constexpr std::size_t kBatch = std::size_t{64} << 10;
  lane_ = std::make_shared<Lane>(Policy::spread({kBatch, 8}, 50us));
  const std::uint64_t most = lane_->policy().turn_bytes;
  const auto thread = *Worker::make(50us);
  const auto script = std::make_shared<Script>();
  script->window = ~0UL;
  ChannelRunner::Setup setup{"", nullptr, std::make_unique<CopyChannel>(script, "copy"), nullptr};
  const auto runner = std::make_shared<ChannelRunner>(*thread, lane_, std::move(setup));
  PostUnlockActions actions;
  EXPECT_EQ(runner->try_turn(actions), Turn::kMoved);  // it comes up
  const auto state = submit(1, 10 * most);
  for (int turns = 0; turns != 10; ++turns) {
    EXPECT_FALSE(state->done());
    const std::size_t before = script->posts;
    EXPECT_EQ(runner->try_turn(actions), Turn::kMoved);
    EXPECT_EQ((script->posts - before) * kBatch, most) << turns;
    EXPECT_EQ(runner->quiet_since(), std::nullopt) << "the rest is still to come, or was just posted";
  }
  runner->try_turn(actions);
  EXPECT_TRUE(state->wait(0s));
  expect_arrived(1, 10 * most);
  runner->stop({ErrorCode::kCancelled, "the test ends"});
}

// To be woken for it takes longer than it does where he waits for it, and polls.
TEST_F(LaneTest, WhatACallerHasBegunIsHisForAMoment) {
  lane_ = std::make_shared<Lane>(Policy::spread({4096, 8}, 50us));
  const auto thread = *Worker::make(50us);
  const auto script = std::make_shared<Script>();
  ChannelRunner::Setup setup{"", nullptr, std::make_unique<CopyChannel>(script, "copy"), nullptr};
  const auto runner = std::make_shared<ChannelRunner>(*thread, lane_, std::move(setup));
  PostUnlockActions actions;
  EXPECT_EQ(runner->try_turn(actions), Turn::kMoved);  // it comes up
  for (const bool is_due : {false, true}) {
    script->hold = true;
    const auto before = std::chrono::steady_clock::now();
    const auto state = submit(1, 4096);  // begins it at once
    const auto after = std::chrono::steady_clock::now();
    EXPECT_TRUE(runner->signalled());
    EXPECT_TRUE(runner->left_busy());
    script->hold = false;
    if (is_due) runner->signal();
    {
      MutexLock lock(thread->mutex());
      runner->clear_signal();
      EXPECT_EQ(runner->turn_if_due(before + Policy::kReturn / 2, actions), is_due);
      EXPECT_EQ(runner->turn_if_due(after + Policy::kReturn, actions), !is_due);
    }
    actions.run();
    EXPECT_TRUE(state->done());
    EXPECT_FALSE(runner->left_busy());
  }
  runner->stop({ErrorCode::kCancelled, "the test ends"});
}

// Even where nothing else tells the worker, which does not watch a channel after its last movement.
TEST_F(LaneTest, WhatATurnLeavesIsMovedOn) {
  workers_.clear();
  workers_.push_back(std::move(*Worker::start(0us, 0)));
  for (const std::size_t window : {std::size_t{4}, ~std::size_t{0}}) {
    lane_ = std::make_shared<Lane>(Policy::spread({4096, 8}, 0us));
    add_channel()->window = window;
    const std::size_t size = 3 * lane_->policy().turn_bytes;
    const auto state = submit(1, size);
    ASSERT_TRUE(state->wait(20s)) << window;
    expect_arrived(1, size);
  }
}

// What the test sees of a channel that does nothing but say how it fares.
struct Witness {
  std::atomic<bool> moves{false};  // with each look
  std::atomic<std::size_t> looks{0};
  std::atomic<std::size_t> rests{0};
  UniqueFd ready{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

class WitnessChannel : public Channel {
 public:
  explicit WitnessChannel(std::shared_ptr<Witness> witness) : witness_(std::move(witness)) {}
  std::vector<std::byte> address() const override { return {}; }
  Status connect(std::span<const std::byte>) override { return {}; }
  ChannelState state() const override { return ChannelState::kReady; }
  Error error() const override { return {}; }
  bool post(const Batch&) override { return false; }
  bool progress(std::vector<Completion>&) override {
    ++witness_->looks;
    return witness_->moves;
  }
  void abandon(BatchId) override {}
  int ready_fd() const override { return witness_->ready.get(); }
  bool busy() const override { return false; }
  bool arm_events() override { return ++witness_->rests, true; }
  std::string describe() const override { return "witness"; }

 private:
  std::shared_ptr<Witness> witness_;
};

// A peer that writes without a pause does not keep others, more than the thread sees at once, from being
// read.
TEST_F(LaneTest, AChannelThatAlwaysMovesDoesNotHideOthers) {
  workers_.resize(1);
  const auto add_witness = [&] {
    auto witness = std::make_shared<Witness>();
    ChannelRunner::Setup setup{"", nullptr, std::make_unique<WitnessChannel>(witness), nullptr};
    runners_.push_back(std::make_shared<ChannelRunner>(*workers_.front(), lane_, std::move(setup)));
    runners_.back()->start();
    return witness;
  };
  std::vector<std::shared_ptr<Witness>> others(200);
  for (auto& one : others) one = add_witness();
  add_witness()->moves = true;
  for (const auto& one : others) {
    EXPECT_TRUE(eventually([&] { return one->rests != 0; }));
  }
  std::vector<std::size_t> before;
  for (const auto& one : others) before.push_back(one->looks);
  for (const auto& one : others) ::eventfd_write(one->ready.get(), 1);
  for (std::size_t i = 0; i != others.size(); ++i) {
    ASSERT_TRUE(eventually([&] { return others[i]->looks > before[i]; })) << i;
  }
}

// Who is awake first would take them all.
TEST_F(LaneTest, ReadsAreLeftToChannelsThatHaveNothing) {
  operation_ = Operation::kRead;
  lane_ = std::make_shared<Lane>(Policy::spread({1 << 20, 8}, 50us));
  std::vector<std::shared_ptr<Script>> scripts;
  for (int i = 0; i != 4; ++i) {
    scripts.push_back(add_unattended_channel());
    scripts.back()->window = 100;
    scripts.back()->hold = true;
  }
  PostUnlockActions actions;
  const auto state = submit(1, 4 << 20);
  for (std::size_t i = 0; i != 4; ++i) {
    EXPECT_EQ(runners_[i]->try_turn(actions), Turn::kMoved);
    EXPECT_EQ(scripts[i]->posts, i == 3 ? 4U : 1U) << i;  // of the last MiB 512, 256 and twice 128 KiB
  }
  for (const auto& script : scripts) script->hold = false;
  for (const auto& runner : runners_) runner->try_turn(actions);
  EXPECT_TRUE(state->done());
}

}  // namespace
}  // namespace p2p::engine
