// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What is over when a connection has ended, between an endpoint and a raw peer.
#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "support/sequence_ends.h"

namespace p2p::testing {
namespace {

/// Where a channel stands still in the middle of its work, until it is told to go on.
struct Work {
  std::latch begun{1};
  std::latch goes_on{1};
};

class WorkingChannel : public PlainChannel {
 public:
  explicit WorkingChannel(std::shared_ptr<Work> work) : work_(std::move(work)) {}

  Status on_control(std::span<const std::byte> /*message*/) override {
    work_->begun.count_down();
    work_->goes_on.wait();
    return {};
  }

 private:
  const std::shared_ptr<Work> work_;
};

class Working : public PlainTransport {
 public:
  explicit Working(std::shared_ptr<Work> work)
      : PlainTransport("plain", Kind::kStays), work_(std::move(work)) {}

  Result<std::unique_ptr<Channel>> open_channel(const ChannelSetup&) override {
    return std::make_unique<WorkingChannel>(work_);
  }

 private:
  const std::shared_ptr<Work> work_;
};

class ClosingTest : public SequenceTest {
 protected:
  void SetUp() override {
    options_.listen_address = "127.0.0.1";
    const auto make = [work = work_](const Options&, const auto&) { return std::make_unique<Working>(work); };
    endpoint_ = engine::Endpoint::create(options_, TransportRegistry{{{"plain", make}}}).value();
  }

  const std::shared_ptr<Work> work_ = std::make_shared<Work>();
};

// The application closes, and the session ends meanwhile on its own thread.
TEST_F(ClosingTest, AReceiveFailsOnceNoChannelIsAtWorkWhoeverEndsIt) {
  std::vector<std::byte> memory(std::size_t{64} << 10);
  const auto region = endpoint_->register_memory(memory.data(), memory.size(), {});
  ASSERT_TRUE(region);
  std::optional<RawPeer> peer(RawPeer::dial(endpoint_->port()));
  ASSERT_TRUE(peer->shake_hands(Role::kConnector, {"plain"}));
  ASSERT_TRUE(bring_up(*peer, "plain", false));
  peer->say(kReady);
  connection_ = endpoint_->connections().back();
  ASSERT_TRUE(connection_->wait_open(kLimit));
  const LocalSpan into = region->span();
  const auto received = connection_->receive({&into, 1});
  peer->say(wire::ChannelControl{"plain", 0, Bytes(1)});
  ASSERT_TRUE(eventually([&] { return work_->begun.try_wait(); }));
  std::thread closing([&] { static_cast<void>(connection_->close(0ns)); });
  const bool closes = eventually([&] { return connection_->report().routes().front().transport.empty(); });
  peer->say(wire::NotifyDone{1});  // a breach, which is the session's end
  peer.reset();
  const auto until = std::chrono::steady_clock::now() + 200ms;
  while (!received->done() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_FALSE(received->done()) << "a channel may write to its memory";
  work_->goes_on.count_down();
  closing.join();
  EXPECT_TRUE(closes);
  EXPECT_TRUE(eventually([&] { return received->done(); }));
  EXPECT_FALSE(received->status());
}

}  // namespace
}  // namespace p2p::testing
