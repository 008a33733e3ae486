// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A plugin whose connection dies without its saying so: the peer's process lives and answers, and no byte
// moves.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include "support/devices.h"
#include "transport/nccl_net/nccl_net.h"

namespace p2p::nccl_net::stall_test {
namespace {

using Clock = std::chrono::steady_clock;

struct Link final : ControlLink {
  std::deque<std::vector<std::byte>> sent;
  void send(std::span<const std::byte> message) override {
    sent.emplace_back(message.begin(), message.end());
  }
};

struct End {
  std::unique_ptr<Transport> transport;
  Link link;
  std::unique_ptr<Channel> channel;
  std::vector<Completion> completions;

  void open(Role role) {
    Options options;
    options.nccl_net.plugin = SOFTNET_PATH;
    options.keepalive = std::chrono::milliseconds(200);
    transport = make(options, test_devices(options));
    ASSERT_TRUE(transport->probe()) << transport->probe().error().message;
    auto opened =
        transport->open_channel({.role = role, .rail = transport->rails({}).front(), .control = &link});
    ASSERT_TRUE(opened) << opened.error().message;
    channel = std::move(*opened);
  }
  void step(End& twin) {
    for (; !twin.link.sent.empty(); twin.link.sent.pop_front()) {
      static_cast<void>(channel->on_control(twin.link.sent.front()));
    }
    channel->progress(completions);
  }
};

TEST(Stall, AChannelOnWhichNothingMovesIsGoneThoughThePeerAnswers) {
  ::setenv("SOFTNET_INTERFACES", "lo", 1);
  ::setenv("SOFTNET_FAULT", "stall_after=2000000", 1);
  End left, right;
  left.open(Role::kConnector);
  right.open(Role::kAcceptor);
  ASSERT_TRUE(left.channel->connect(right.channel->address()));
  ASSERT_TRUE(right.channel->connect(left.channel->address()));
  const auto step_while = [&](ChannelState state) {
    const auto end = Clock::now() + std::chrono::seconds(60);
    while (left.channel->state() == state && Clock::now() < end) {
      left.step(right);
      right.step(left);
    }
  };
  step_while(ChannelState::kConnecting);
  ASSERT_EQ(left.channel->state(), ChannelState::kReady);
  std::vector<std::byte> from(8 << 20), to(8 << 20);
  const RegionInfo source{.id = RegionId{1}, .base = from.data(), .size = from.size()};
  const RegionInfo target{.id = RegionId{1}, .base = to.data(), .size = to.size()};
  const auto registration = left.transport->register_memory(source);
  const auto registered = right.transport->register_memory(target);
  const auto key = left.transport->import_region(target, {});
  ASSERT_TRUE(registration && registered && key);
  const Segment segment{from.data(), reinterpret_cast<std::uint64_t>(to.data()), from.size(),
                        registration->get(), key->get()};
  ASSERT_TRUE(left.channel->post({.id = BatchId{1}, .segments = {&segment, 1}, .bytes = from.size()}));
  step_while(ChannelState::kReady);
  ASSERT_EQ(left.channel->state(), ChannelState::kFailed);
  EXPECT_EQ(left.channel->error().code, ErrorCode::kPeerGone);
  EXPECT_NE(left.channel->error().message.find("have not come"), std::string::npos)
      << left.channel->error().message;
  left.channel->progress(left.completions);
  ASSERT_EQ(left.completions.size(), 1U);
  EXPECT_FALSE(left.completions[0].status);
}

}  // namespace
}  // namespace p2p::nccl_net::stall_test
