// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a peer that is let in can use up of an endpoint.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/endpoint.h"
#include "support/eventually.h"
#include "support/plain_transport.h"
#include "support/raw_listener.h"
#include "support/raw_peer.h"

namespace p2p::testing {
namespace {

using namespace std::chrono_literals;

const Bytes kGood{static_cast<std::byte>(PlainAddress::kGood)};

class LimitsTest : public ::testing::Test {
 protected:
  void make_endpoint() {
    options_.listen_address = "127.0.0.1";
    const TransportRegistry registry{{PlainTransport::entry("plain")}};
    endpoint_ = engine::Endpoint::create(options_, registry).value();
  }

  /// One that dials the endpoint, with its connection open.
  RawPeer peer() {
    RawPeer peer = RawPeer::dial(endpoint_->port());
    EXPECT_TRUE(peer.shake_hands(Role::kConnector, {"plain"}));
    peer.say(wire::ChannelOffer{"plain", {kGood, kGood}});
    EXPECT_TRUE(peer.next_of<wire::ChannelsReady>());
    peer.say(wire::ChannelsReady{"plain", ""});
    return peer;
  }

  Options options_;
  std::unique_ptr<engine::Endpoint> endpoint_;
};

TEST_F(LimitsTest, ConnectionsThatNobodyAcceptsAreRefusedAboveTheLimit) {
  options_.max_unaccepted = 2;
  make_endpoint();
  std::vector<RawPeer> waiting;
  for (int i = 0; i != 2; ++i) {
    waiting.push_back(peer());
    ASSERT_TRUE(eventually([&] { return endpoint_->connections().size() == waiting.size(); }));
  }
  ASSERT_TRUE(eventually([&] {
    const auto all = endpoint_->connections();
    return std::ranges::all_of(all, [](const auto& one) { return one->state() == ConnectionState::kOpen; });
  }));
  RawPeer third = peer();
  const auto bye = third.next_of<wire::Bye>();
  ASSERT_TRUE(bye);
  EXPECT_NE(bye->reason.find("2 connections wait"), std::string::npos) << bye->reason;
  EXPECT_EQ(endpoint_->stats().connections_refused, 1U);

  ASSERT_TRUE(endpoint_->accept(20s));
  RawPeer fourth = peer();
  EXPECT_TRUE(endpoint_->accept(20s));
  EXPECT_TRUE(endpoint_->accept(20s));
  EXPECT_EQ(endpoint_->stats().connections_refused, 1U);
}

TEST_F(LimitsTest, APeerThatPostsReceivesWithoutEndIsDropped) {
  options_.max_posted_receives = 3;
  make_endpoint();
  RawPeer peer = this->peer();
  const auto connection = endpoint_->accept(20s);
  ASSERT_TRUE(connection);
  const auto post = [&](std::uint64_t sequence) {
    peer.say_message(wire::ReceivePosted{sequence, 0, {{.region = 9, .address = 4096, .size = 8}}});
  };
  for (std::uint64_t sequence = 0; sequence != 3; ++sequence) post(sequence);
  peer.say(wire::RegionQuery{1, 4711, {}});
  EXPECT_TRUE(peer.next_of<wire::RegionAnswer>()) << "so many are allowed";
  post(3);
  EXPECT_TRUE(peer.dropped());
  ASSERT_TRUE(eventually([&] { return (*connection)->state() == ConnectionState::kClosed; }));
  EXPECT_EQ((*connection)->status().error().code, ErrorCode::kProtocol);
}

TEST_F(LimitsTest, ChannelsAboveTheLimitAreNeitherOfferedNorTaken) {
  options_.max_channels = 1;
  make_endpoint();
  RawPeer dials = RawPeer::dial(endpoint_->port());
  ASSERT_TRUE(dials.shake_hands(Role::kConnector, {"plain"}));
  dials.say(wire::ChannelOffer{"plain", {kGood, kGood}});
  const auto answer = dials.next_of<wire::ChannelAnswer>();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->addresses.size(), 1U);

  const RawListener listener;
  static_cast<void>(endpoint_->connect("127.0.0.1", listener.port(), 20s, std::nullopt));
  RawPeer dialled = listener.accept();
  ASSERT_TRUE(dialled.shake_hands(Role::kAcceptor, {"plain"}));
  const auto offer = dialled.next_of<wire::ChannelOffer>();
  ASSERT_TRUE(offer);
  EXPECT_EQ(offer->addresses.size(), 1U);
}

}  // namespace
}  // namespace p2p::testing
