// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a channel leaves to its peer when it ends: transfers whose memory the peer may still write to.
#include "engine/memory/fence.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <atomic>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/schedule/lane_testing.h"
#include "support/eventually.h"
#include "support/plain_transport.h"

namespace p2p::engine {
namespace {

using testing::eventually;

/// Over when the test says so.
struct Twin {
  UniqueFd said{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::atomic<bool> through{false};

  void end() {
    through = true;
    ::eventfd_write(said.get(), 1);
  }
};

class TwinsEnd : public PeerEnd {
 public:
  explicit TwinsEnd(std::shared_ptr<Twin> twin) : twin_(std::move(twin)) {}
  int fd() const override { return twin_->said.get(); }
  bool over() const override { return twin_->through; }

 private:
  const std::shared_ptr<Twin> twin_;
};

/// Asks its twin to copy every other batch, which never answers, and copies nothing itself.
class AskingChannel : public Channel, public LeavesPeer {
 public:
  AskingChannel(std::shared_ptr<Twin> twin, std::atomic<std::size_t>& posts)
      : twin_(std::move(twin)), posts_(posts) {}

  std::vector<std::byte> address() const override { return {}; }
  Status connect(std::span<const std::byte> /*peer_address*/) override { return {}; }
  ChannelState state() const override { return ChannelState::kReady; }
  Error error() const override { return {ErrorCode::kPeerGone, "never"}; }
  bool post(const Batch& batch) override {
    if (posts_ % 2 == 0) held_.push_back(batch.id);
    ++posts_;
    return true;
  }
  bool progress(std::vector<Completion>& /*completions*/) override { return false; }
  int ready_fd() const override { return -1; }
  void abandon(BatchId /*id*/) override {}
  bool busy() const override { return posts_ != 0; }
  std::string describe() const override { return "asking"; }

  Left leave() override {
    if (twin_->through) return {};
    return {std::make_unique<TwinsEnd>(twin_), held_};
  }

 private:
  const std::shared_ptr<Twin> twin_;
  std::atomic<std::size_t>& posts_;
  std::vector<BatchId> held_;
};

class FenceHolds : public LaneTest {
 protected:
  static constexpr std::chrono::milliseconds kLong{60'000};
  static constexpr std::chrono::milliseconds kShort{50};

  /// Two transfers are under way, the first one by the twin.
  void begin(std::chrono::milliseconds limit) {
    fence_ = std::make_shared<Fence>(*reactor_, limit);
    ChannelRunner::Setup setup{.channel = std::make_unique<AskingChannel>(twin_, posts_), .fence = fence_};
    runners_.push_back(std::make_shared<ChannelRunner>(*workers_.front(), lane_, std::move(setup)));
    runners_.back()->start();
    held_ = submit(1, 100);
    ASSERT_TRUE(eventually([&] { return posts_ == 1; }));
    free_ = submit(1, 100);
    ASSERT_TRUE(eventually([&] { return posts_ == 2; }));
    runners_.back()->stop({ErrorCode::kPeerGone, "the connection ended"});
  }

  /// As a connection does that has ended.
  void close() {
    on_reactor([&] { fence_->when_passed([&](bool) { fence_->release_held(); }); });
  }

  template <class Call>
  void on_reactor(Call call) {
    std::promise<void> done;
    reactor_->post([&] {
      call();
      done.set_value();
    });
    done.get_future().wait();
  }

  std::unique_ptr<Reactor> reactor_ = std::move(*Reactor::start());
  std::shared_ptr<Twin> twin_ = std::make_shared<Twin>();
  std::atomic<std::size_t> posts_{0};
  std::shared_ptr<Fence> fence_;
  std::shared_ptr<TransferState> held_;
  std::shared_ptr<TransferState> free_;
};

TEST_F(FenceHolds, ATransferWhoseMemoryTheTwinMayWriteToFailsOnceItIsThrough) {
  begin(kLong);
  close();
  EXPECT_FALSE(free_->wait(10s)) << "nobody writes for it";
  EXPECT_TRUE(free_->done());
  EXPECT_FALSE(held_->done());
  twin_->end();
  const Status failed = held_->wait(10s);
  ASSERT_TRUE(held_->done());
  EXPECT_EQ(failed.error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(failed.error().message, "the connection ended");
}

TEST_F(FenceHolds, AfterTheLimitItsErrorSaysThatTheMemoryIsNotFree) {
  operation_ = Operation::kRead;
  begin(kShort);
  close();
  const Status failed = held_->wait(10s);
  ASSERT_TRUE(held_->done());
  EXPECT_EQ(failed.error().message, "the connection ended; it may still write here");
  EXPECT_FALSE(fence_->passed());
  twin_->end();
  EXPECT_TRUE(fence_->wait(std::chrono::steady_clock::now() + 10s));
}

// As where one channel breaks the protocol.
TEST_F(FenceHolds, WhileTheConnectionLivesItFailsAfterTheLimit) {
  begin(kShort);
  const Status failed = held_->wait(10s);
  ASSERT_TRUE(held_->done());
  EXPECT_EQ(failed.error().message, "the connection ended; it may still read here");
}

TEST_F(FenceHolds, ATwinThatIsThroughHoldsNothing) {
  twin_->through = true;
  begin(kLong);
  EXPECT_FALSE(held_->wait(10s));
  EXPECT_TRUE(held_->done());
  EXPECT_TRUE(fence_->passed());
}

TEST_F(FenceHolds, TheRegionsOfWhatFailedStayBehindTheFence) {
  const TransportList transports{{.transport = std::make_shared<testing::PlainTransport>("plain")}};
  const auto table = std::make_shared<RegionTable>(transports, Incarnation{1}, 1s);
  std::vector<std::byte> memory(100);
  const auto region = table->add(memory.data(), memory.size(), {});
  ASSERT_TRUE(region) << region.error().message;
  locals_.push_back(*region);
  begin(kShort);
  close();
  static_cast<void>(held_->wait(10s));
  ASSERT_TRUE(held_->done());
  EXPECT_FALSE(locals_.front()->revoke(std::chrono::steady_clock::now() + 50ms));
  twin_->end();
  EXPECT_TRUE(locals_.front()->revoke(std::chrono::steady_clock::now() + 10s));
}

}  // namespace
}  // namespace p2p::engine
