// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/messaging/message_stream.h"

#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/messaging/message_stream_port.h"
#include "engine/schedule/lane.h"
#include "engine/schedule/worker.h"
#include "support/eventually.h"
#include "wire/encode.h"

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;

// Both directions of a fake channel, whose two ends sit in runners of one worker.
struct Wire {
  Mutex mutex;
  std::deque<Bytes> blocks[2] P2P_GUARDED_BY(mutex);  // to each end
  std::atomic<bool> dumb{false};                      // takes blocks and loses them
  std::atomic<bool> full{false};
  std::atomic<int> said{0};
};

class WordChannel : public Channel {
 public:
  WordChannel(std::shared_ptr<Wire> wire, int end, MessageListener& listener)
      : wire_(std::move(wire)), end_(end), listener_(listener) {}
  std::vector<std::byte> address() const override { return {}; }
  Status connect(std::span<const std::byte>) override { return {}; }
  ChannelState state() const override { return ChannelState::kReady; }
  Error error() const override { return {}; }
  bool post(const Batch&) override { return false; }
  void abandon(BatchId) override {}
  int ready_fd() const override { return -1; }
  bool busy() const override { return true; }
  std::string describe() const override { return "fake"; }
  bool carries_messages() const override { return true; }

  bool progress(std::vector<Completion>&) override {
    std::deque<Bytes> came;
    {
      MutexLock lock(wire_->mutex);
      came.swap(wire_->blocks[end_]);
    }
    for (const Bytes& block : came) listener_.take(block);
    return !came.empty();
  }

  bool say(std::span<const std::byte> block) override {
    if (wire_->full) return false;
    ++wire_->said;
    if (wire_->dumb) return true;
    MutexLock lock(wire_->mutex);
    wire_->blocks[1 - end_].emplace_back(block.begin(), block.end());
    return true;
  }

 private:
  const std::shared_ptr<Wire> wire_;
  const int end_;
  MessageListener& listener_;
};

class WordsTest : public ::testing::Test {
 protected:
  struct Side {
    std::shared_ptr<MessageStream> messages;
    Mutex mutex;
    std::vector<std::string> heard P2P_GUARDED_BY(mutex);
    std::vector<Error> broken P2P_GUARDED_BY(mutex);
    std::deque<Bytes> session P2P_GUARDED_BY(mutex);  // sent, not delivered
    std::vector<std::shared_ptr<ChannelRunner>> runners;
    std::optional<wire::Message> answer;  // to each message
  };

  void SetUp() override {
    worker_ = std::move(*Worker::start(50us, 0));
    for (Side& side : sides_) {
      side.messages = std::make_shared<MessageStream>(
          50us, MessageStream::Hooks{[&side](const wire::Message& message) {
                                       MutexLock lock(side.mutex);
                                       side.session.push_back(std::get<wire::MessageBlock>(message).block);
                                     },
                                     [&side](wire::Message& message, PostUnlockActions&) -> Status {
                                       const auto* bye = std::get_if<wire::Bye>(&message);
                                       if (bye == nullptr) return fail(ErrorCode::kProtocol, "not a bye");
                                       MutexLock lock(side.mutex);
                                       side.heard.push_back(bye->reason);
                                       if (side.answer) side.messages->say(*side.answer);
                                       return {};
                                     },
                                     [&side](const Error& error) {
                                       MutexLock lock(side.mutex);
                                       side.broken.push_back(error);
                                     }});
    }
  }

  void TearDown() override {
    for (Side& side : sides_) {
      side.messages->close();
      for (const auto& runner : side.runners) runner->stop({ErrorCode::kCancelled, "the test ends"});
    }
  }

  // A channel between the two; the number names its ends' runners.
  std::shared_ptr<Wire> add_channel() {
    auto wire = std::make_shared<Wire>();
    for (int end = 0; end < 2; ++end) {
      auto lane = std::make_shared<Lane>(Policy::spread({4096, 8}, 50us));
      auto up = std::make_shared<TransferState>();
      auto ear = std::make_unique<MessageStreamPort>(sides_[end].messages);
      auto channel = std::make_unique<WordChannel>(wire, end, *ear);
      ChannelRunner::Setup setup{.rail = "",
                                 .control = nullptr,
                                 .channel = std::move(channel),
                                 .report = [up](const Status& status) { up->finish(status); },
                                 .fence = nullptr,
                                 .messages = std::move(ear)};
      auto runner = std::make_shared<ChannelRunner>(*worker_, lane, std::move(setup));
      sides_[end].runners.push_back(runner);
      runner->start();
      EXPECT_TRUE(up->wait(10s));
    }
    return wire;
  }

  void say(int side, const std::string& text) {
    sides_[side].messages->say(wire::Bye{text});
    sides_[side].messages->flush();
  }

  // What the sides sent over the session, in turns until nothing more comes.
  void run_session() {
    for (bool any = true; any;) {
      any = false;
      for (int from = 0; from < 2; ++from) {
        std::deque<Bytes> blocks;
        {
          MutexLock lock(sides_[from].mutex);
          blocks.swap(sides_[from].session);
        }
        any = any || !blocks.empty();
        for (const Bytes& block : blocks) {
          PostUnlockActions actions;
          sides_[1 - from].messages->take(block, actions);
          actions.run();
          sides_[1 - from].messages->flush();
        }
      }
    }
  }

  std::vector<std::string> heard(int side) {
    MutexLock lock(sides_[side].mutex);
    return sides_[side].heard;
  }

  std::size_t broken(int side) {
    MutexLock lock(sides_[side].mutex);
    return sides_[side].broken.size();
  }

  Status take(int side, const Bytes& block) {
    PostUnlockActions actions;
    const std::size_t before = broken(side);
    sides_[side].messages->take(block, actions);
    actions.run();
    MutexLock lock(sides_[side].mutex);
    if (sides_[side].broken.size() == before) return {};
    return tl::unexpected(sides_[side].broken.back());
  }

  static Bytes block(std::uint64_t offset, std::uint64_t acknowledged, std::uint8_t asks,
                     const Bytes& frames) {
    Bytes bytes;
    ByteWriter writer(bytes);
    writer.put(offset);
    writer.put(acknowledged);
    writer.put(asks);
    writer.put(ByteView(frames));
    return bytes;
  }

  std::unique_ptr<Worker> worker_;
  Side sides_[2];
};

using Texts = std::vector<std::string>;

TEST_F(WordsTest, ComeInOrderOverTheSession) {
  say(0, "before the path is known");
  sides_[0].messages->travel_by(nullptr);
  sides_[1].messages->travel_by(nullptr);
  say(0, "then");
  say(1, "back");
  run_session();
  EXPECT_EQ(heard(1), (Texts{"before the path is known", "then"}));
  EXPECT_EQ(heard(0), (Texts{"back"}));
}

TEST_F(WordsTest, GoAgainOverAnotherChannelAndComeOnce) {
  const auto first = add_channel();
  const auto second = add_channel();
  for (Side& side : sides_) side.messages->travel_by(side.runners[0]);
  say(0, "a");
  ASSERT_TRUE(testing::eventually([&] { return heard(1).size() == 1; }));
  first->dumb = true;
  say(0, "b");
  say(0, "c");
  ASSERT_TRUE(testing::eventually([&] { return first->said >= 2; }));
  EXPECT_EQ(heard(1), (Texts{"a"}));
  sides_[0].messages->travel_by(sides_[0].runners[1]);  // "a" may be sent again, too
  ASSERT_TRUE(testing::eventually([&] { return heard(1).size() == 3; }));
  say(0, "d");
  sides_[0].messages->travel_by(nullptr);
  run_session();
  say(0, "e");
  run_session();
  ASSERT_TRUE(testing::eventually([&] { return heard(1).size() == 5; }));
  EXPECT_EQ(heard(1), (Texts{"a", "b", "c", "d", "e"}));
  EXPECT_EQ(broken(0) + broken(1), 0U);
}

TEST_F(WordsTest, WaitForAFullChannel) {
  const auto wire = add_channel();
  for (Side& side : sides_) side.messages->travel_by(side.runners[0]);
  wire->full = true;
  Texts all;
  for (int i = 0; i < 1000; ++i) say(0, all.emplace_back(std::to_string(i)));
  EXPECT_TRUE(heard(1).empty());
  wire->full = false;
  ASSERT_TRUE(testing::eventually([&] { return heard(1).size() == all.size(); }));
  EXPECT_EQ(heard(1), all);
}

TEST_F(WordsTest, ManyLeaveTogetherWhileThePeerHasNotAnswered) {
  const auto wire = add_channel();
  wire->dumb = true;
  sides_[0].messages->travel_by(sides_[0].runners[0]);
  const auto one_of_many = [&](const std::string& text) {
    sides_[0].messages->say(wire::Bye{text});
    sides_[0].messages->gather();
    sides_[0].messages->flush_if_due();
  };
  one_of_many("first");
  ASSERT_TRUE(testing::eventually([&] { return wire->said == 1; }));
  // The fake channel keeps the worker looking, which would send them: no turn while this thread is at it.
  EXPECT_TRUE(sides_[0].messages->path() != nullptr);
  sides_[0].messages->travel_by(nullptr);
  std::size_t blocks = 0;
  {
    MutexLock lock(sides_[0].mutex);
    blocks = sides_[0].session.size();
  }
  for (int i = 0; i < 10; ++i) one_of_many(std::to_string(i));
  MutexLock lock(sides_[0].mutex);
  EXPECT_EQ(sides_[0].session.size(), blocks) << "they wait for the answer to the first";
}

TEST_F(WordsTest, WhatNoPeerSendsIsAnError) {
  sides_[0].messages->travel_by(nullptr);
  say(0, "x");  // 12 bytes and the text
  const Bytes frame = wire::encode(wire::Message(wire::Bye{"y"}));
  Bytes cut = frame;
  cut.pop_back();
  Bytes longer = frame;
  longer[2] = std::byte{1};
  const Bytes wrong = wire::encode(wire::Message(wire::Heartbeat{}));
  for (const Bytes& bad : {Bytes(16), block(1, 0, 0, frame), block(0, 0, 2, frame),
                           block(0, ~std::uint64_t{0}, 0, {}), block(0, 1, 0, {}), block(0, 0, 0, cut),
                           block(0, 0, 0, longer), block(0, 0, 0, wrong), block(0, 0, 0, Bytes(3))}) {
    const Status taken = take(0, bad);
    ASSERT_FALSE(taken) << bad.size();
    EXPECT_EQ(taken.error().code, ErrorCode::kProtocol);
  }
  EXPECT_TRUE(take(0, block(0, 0, 0, frame)));
  EXPECT_TRUE(take(0, block(0, 0, 0, frame))) << "a second time is nothing new";
  EXPECT_EQ(heard(0), (Texts{"y"}));
  EXPECT_FALSE(take(0, block(3, 0, 0, frame))) << "from the middle of a word on";
}

TEST_F(WordsTest, WhatThePeerHasHeardIsNotKept) {
  for (Side& side : sides_) side.messages->travel_by(nullptr);
  const std::string text(10000, 'w');
  for (int i = 0; i < 100; ++i) say(0, text);
  run_session();
  {
    MutexLock lock(sides_[0].mutex);
    sides_[0].session.clear();
  }
  // What goes again over a new path is what is still kept.
  add_channel();
  sides_[0].messages->travel_by(sides_[0].runners[0]);
  ASSERT_TRUE(testing::eventually([&] { return !sides_[0].messages->pending(); }));
  sides_[0].messages->travel_by(nullptr);
  MutexLock lock(sides_[0].mutex);
  std::size_t again = 0;
  for (const Bytes& block : sides_[0].session) again += block.size();
  EXPECT_LT(again, std::size_t{128} << 10);
}

TEST_F(WordsTest, APeerThatTakesNoAnswersIsLeft) {
#if defined(P2P_TSAN)
  GTEST_SKIP() << "it has one thread, and takes the thread sanitizer half a minute";
#endif
  sides_[0].messages->travel_by(nullptr);
  sides_[0].answer = wire::Bye{std::string(10000, 'a')};
  const Bytes frame = wire::encode(wire::Message(wire::Bye{"q"}));
  const std::uint64_t answer = wire::encode(*sides_[0].answer).size();
  const std::uint64_t rounds = 2 * MessageStream::kMaxAnswerBytes / answer;
  std::uint64_t asked = 0;
  const auto ask = [&](std::uint64_t taken) {
    const Status status = take(0, block(asked++ * frame.size(), taken * answer, 0, frame));
    sides_[0].messages->flush();
    MutexLock lock(sides_[0].mutex);
    sides_[0].session.clear();
    return status;
  };
  while (asked < rounds) ASSERT_TRUE(ask(asked)) << "all was taken";
  for (std::uint64_t i = 0; i < rounds / 3; ++i) ASSERT_TRUE(ask(rounds)) << "it may be slow";
  for (std::uint64_t i = 0; i < rounds / 3; ++i) {
    if (const Status status = ask(rounds); !status) {
      EXPECT_EQ(status.error().code, ErrorCode::kProtocol);
      return;
    }
  }
  FAIL() << "it was answered without end";
}

TEST(FrameLog, NamesBytesByWhereTheyLieInAll) {
  FrameLog log;
  std::vector<std::uint64_t> ends{0};
  for (int i = 0; i < 1000; ++i) {
    const std::string tail(static_cast<std::size_t>(i * 37 % 500), 'x');
    const ByteView item = as_bytes(tail);
    log.append(wire::Notify{static_cast<std::uint64_t>(i), tail.size(), 0, {}}, std::span(&item, 1));
    ends.push_back(log.end());
    ASSERT_FALSE(log.drop(log.end() - 1)) << "no frame ends there";
    ASSERT_FALSE(log.drop(log.end() + 1));
    if (i % 7 == 6) {
      ASSERT_TRUE(log.drop(ends[static_cast<std::size_t>(i) - 3]));
      ASSERT_EQ(log.begin(), ends[static_cast<std::size_t>(i) - 3]);
    }
  }
  const std::uint64_t last = ends[ends.size() - 2];
  EXPECT_EQ(log.from(last, 1).size(), log.end() - last) << "one at least";
  EXPECT_EQ(log.from(ends[ends.size() - 3], log.end() - last).size(), last - ends[ends.size() - 3]);
}

}  // namespace
}  // namespace p2p::engine
