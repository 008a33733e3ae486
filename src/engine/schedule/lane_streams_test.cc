// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A lane of more channels than are woken for a transfer.
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "engine/schedule/lane_testing.h"

namespace p2p::engine {
namespace {

// Four channels that are moved by hand, with room for a batch each, which they do not end.
class StreamsTest : public LaneTest {
 protected:
  struct Stream {
    std::unique_ptr<Worker> thread = *Worker::make(50us);
    std::shared_ptr<Script> script = std::make_shared<Script>();
    std::shared_ptr<ChannelRunner> runner;
  };

  void SetUp() override {
    LaneTest::SetUp();
    lane_ = std::make_shared<Lane>(Policy::spread({std::size_t{1} << 20, 8}, 50us));
    for (Stream& stream : streams_) {
      stream.script->window = 1;
      stream.script->hold = true;
      ChannelRunner::Setup setup{"", nullptr, std::make_unique<CopyChannel>(stream.script, "copy"), nullptr};
      stream.runner = std::make_shared<ChannelRunner>(*stream.thread, lane_, std::move(setup));
      turn(stream);  // it comes up
      ASSERT_FALSE(stream.runner->signalled());
    }
  }

  void TearDown() override {
    for (const Stream& stream : streams_) stream.runner->stop({ErrorCode::kCancelled, "the test ends"});
    LaneTest::TearDown();
  }

  static void turn(const Stream& stream) {
    PostUnlockActions actions;
    stream.runner->try_turn(actions);
    actions.run();
  }

  std::array<Stream, 4> streams_;
};

TEST_F(StreamsTest, AFullChannelWakesOneThatHasNothing) {
  const auto state = submit(1, 1 << 20);
  EXPECT_TRUE(streams_[0].runner->signalled());
  EXPECT_FALSE(streams_[3].runner->signalled());  // the others were thought enough
  for (std::size_t i = 0; i != 3; ++i) {
    turn(streams_[i]);
    EXPECT_EQ(streams_[i].script->posts, 1U);
  }
  EXPECT_TRUE(streams_[3].runner->signalled());
  for (const Stream& stream : streams_) stream.script->hold = false;
  turn(streams_[3]);
  EXPECT_EQ(streams_[3].script->posts, 1U);
  for (const Stream& stream : streams_) turn(stream);
  ASSERT_TRUE(state->wait(0s));
  expect_arrived(1, 1 << 20);
}

// It waits for something that others hold, as those would: they would wake each other without end.
TEST_F(StreamsTest, OneThatTakesNothingAtAllWakesNobody) {
  streams_[0].script->window = 0;
  const auto state = submit(1, 1 << 20);
  ASSERT_FALSE(streams_[3].runner->signalled());
  turn(streams_[0]);
  EXPECT_EQ(streams_[0].script->posts, 0U);
  EXPECT_FALSE(streams_[3].runner->signalled());
  streams_[0].script->window = 1;
}

TEST_F(StreamsTest, WhereThereAreManyBatchesAreSmall) {
  lane_->cut_small();
  submit(1, 1 << 20);
  turn(streams_[0]);
  // Nothing is known of it.
  EXPECT_EQ(streams_[0].runner->pace().flying(), 64U << 10);
}

}  // namespace
}  // namespace p2p::engine
