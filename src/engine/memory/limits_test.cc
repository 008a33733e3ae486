// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a peer that is let in can use up of an endpoint.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/endpoint.h"
#include "engine/messaging/message_stream.h"
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
  EXPECT_NE(bye->reason.text().find("2 connections wait"), std::string::npos) << bye->reason.text();
  EXPECT_EQ(endpoint_->stats().connections_refused, 1U);

  ASSERT_TRUE(endpoint_->accept(20s));
  RawPeer fourth = peer();
  EXPECT_TRUE(endpoint_->accept(20s));
  EXPECT_TRUE(endpoint_->accept(20s));
  EXPECT_EQ(endpoint_->stats().connections_refused, 1U);
}

TEST_F(LimitsTest, PeersThatOpenNoChannelCountAsStrangers) {
  options_.max_strangers = options_.max_strangers_of_address = 4;
  make_endpoint();
  RawPeer first = peer();
  const auto kept = endpoint_->accept(20s);
  ASSERT_TRUE(kept);
  std::vector<RawPeer> half_open;
  for (int i = 0; i != 12; ++i) {
    half_open.push_back(RawPeer::dial(endpoint_->port()));
    EXPECT_TRUE(half_open.back().shake_hands(Role::kConnector, {"plain"}));
  }
  EXPECT_TRUE(eventually([&] { return endpoint_->stats().strangers_refused == 8; }))
      << endpoint_->stats().strangers_refused;
  EXPECT_TRUE(half_open.front().dropped());
  EXPECT_TRUE(eventually([&] { return endpoint_->connections().size() == 5; }));
  RawPeer second = peer();
  EXPECT_TRUE(endpoint_->accept(20s));
  EXPECT_EQ((*kept)->state(), ConnectionState::kOpen) << "it has a channel and counts no more";
}

TEST_F(LimitsTest, APeerThatPostsReceivesWithoutEndIsDropped) {
  options_.max_posted_receives = 4;  // three, and a run of withdrawn ones
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
  for (std::uint64_t sequence = 0; sequence != 20; ++sequence) {
    peer.say_message(wire::ReceiveWithdrawn{sequence});
    EXPECT_TRUE(peer.next_of<wire::ReceiveDone>()) << sequence;
    post(sequence + 3);
  }
  peer.say(wire::RegionQuery{2, 4711, {}});
  EXPECT_TRUE(peer.next_of<wire::RegionAnswer>()) << "those that were withdrawn do not count";
  for (std::uint64_t sequence = 23; sequence != 30; ++sequence) post(sequence);
  const auto bye = peer.next_of<wire::Bye>();
  ASSERT_TRUE(bye);
  EXPECT_NE(bye->reason.text().find("4 of at most 4 wait"), std::string::npos) << bye->reason.text();
  EXPECT_TRUE(peer.dropped());
  ASSERT_TRUE(eventually([&] { return (*connection)->state() == ConnectionState::kClosed; }));
  EXPECT_EQ((*connection)->status().error().code, ErrorCode::kProtocol);
}

TEST_F(LimitsTest, WhatAllPeersMakeItKeepIsBounded) {
  constexpr std::size_t kPart = std::size_t{16} << 10;
  options_.max_peer_bytes = 8 * kPart;
  make_endpoint();
  // Notifications to a connection that nobody accepts, then receives of many spans, of another.
  RawPeer first = peer();
  for (std::uint64_t i = 0; i != 20; ++i) {
    first.say_message(wire::Notify{i, kPart, 0, Bytes(kPart)});
  }
  const auto bye = first.next_of<wire::Bye>();
  ASSERT_TRUE(bye);
  EXPECT_NE(bye->reason.text().find("all peers have"), std::string::npos) << bye->reason.text();
  EXPECT_TRUE(first.dropped());
  EXPECT_GT(endpoint_->stats().bytes_kept_for_peers, 6 * kPart);
  EXPECT_LE(endpoint_->stats().bytes_kept_for_peers, options_.max_peer_bytes);

  RawPeer second = peer();
  const std::vector<wire::ReceiveSpan> spans(1000, {.region = 9, .address = 4096, .size = 8});
  for (std::uint64_t i = 0; i != 4; ++i) second.say_message(wire::ReceivePosted{i, 0, spans});
  EXPECT_TRUE(second.next_of<wire::Bye>());

  // Who keeps little goes on.
  RawPeer modest = peer();
  modest.say_message(wire::Notify{0, 100, 0, Bytes(100)});
  ASSERT_TRUE(endpoint_->accept(20s)) << "the first, which has ended";
  std::shared_ptr<engine::Connection> last;
  for (auto next = endpoint_->accept(20s); next; next = endpoint_->accept(1s)) last = *next;
  ASSERT_TRUE(last);
  EXPECT_TRUE(eventually([&] { return last->take_notifications().size() == 1; }));
  EXPECT_EQ(last->state(), ConnectionState::kOpen);
}

// Of spans which a message of this side reaches, and of those alone.
TEST_F(LimitsTest, TheRegionsThatReceivesNameAreBounded) {
  options_.max_peer_bytes = std::size_t{256} << 10;
  make_endpoint();
  RawPeer peer = this->peer();
  const auto connection = *endpoint_->accept(20s);
  std::vector<std::byte> memory(20000);
  const auto region = *endpoint_->register_memory(memory.data(), memory.size(), {});
  const LocalSpan message = region.span();
  std::vector<wire::ReceiveSpan> spans;
  for (std::uint32_t i = 0; i != 2000; ++i) {
    spans.push_back({.region = i, .address = 4096, .size = i == 0 ? memory.size() : 10});
  }
  peer.say_message(wire::ReceivePosted{0, 0, {spans.begin(), spans.begin() + 500}});
  const auto short_way = connection->send({&message, 1});
  EXPECT_TRUE(peer.next_of<wire::RegionQuery>()) << "of the first, which takes all";
  EXPECT_FALSE(peer.next_of<wire::RegionQuery>(50ms));
  EXPECT_EQ(endpoint_->stats().bytes_kept_for_peers, 0U);

  for (auto& span : spans) span.size = 10;
  for (std::size_t first = 0; first != spans.size(); first += 500) {
    const auto part = spans.begin() + static_cast<std::ptrdiff_t>(first);
    peer.say_message(wire::ReceivePosted{1, first != 1500, {part, part + 500}});
  }
  const Status sent = connection->send({&message, 1})->wait(20s);
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(sent.error().message.find("all peers have"), std::string::npos) << sent.error().message;
  const auto told = peer.next_of<wire::ReceiveDone>();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->sequence, 1U);
  EXPECT_NE(told->message.text().find("all peers have"), std::string::npos) << told->message.text();
  EXPECT_GT(endpoint_->stats().bytes_kept_for_peers, options_.max_peer_bytes / 2);
  EXPECT_EQ(connection->state(), ConnectionState::kOpen);
  static_cast<void>(connection->close(1ms));  // the first send is not through
  EXPECT_TRUE(eventually([&] { return endpoint_->stats().bytes_kept_for_peers == 0; }));
}

/// A text almost as long as a frame takes, of what would move a terminal's cursor or begin a line of a log.
std::string hostile_text(std::size_t frame_bytes) {
  std::string text;
  while (text.size() < frame_bytes - 64) text += "\x1b[2J\n\r\x9b\xe2\x80\xa8 line";
  return text;
}

/// A message that ends with a text, with this one in its place as it is.
Bytes with_text(const wire::Message& message, std::string_view text) {
  Bytes frame = wire::encode(message);
  wire::lengthen(frame, static_cast<std::uint32_t>(text.size()));
  const ByteView tail = as_bytes(text);
  frame.insert(frame.end(), tail.begin(), tail.end());
  return frame;
}

/// Messages that end with a text which transfers tell.
const std::vector<wire::Message> kTells = {wire::Bye{}, wire::SendsEnded{}, wire::ChannelsReady{"plain", ""}};

class TextTest : public LimitsTest, public ::testing::WithParamInterface<std::size_t> {};

// Every transfer that waits tells it.
TEST_P(TextTest, WhatAPeerSaysIsShortAndPrintableInEachOfManyErrors) {
  make_endpoint();
  RawPeer peer = this->peer();
  const auto connection = endpoint_->accept(20s);
  ASSERT_TRUE(connection);
  std::vector<std::byte> memory(std::size_t{64} << 10);
  const auto region = endpoint_->register_memory(memory.data(), memory.size(), {});
  ASSERT_TRUE(region);
  const LocalSpan into = region->span();
  std::vector<decltype((*connection)->receive({&into, 1}))> receives;
  for (int i = 0; i != 2000; ++i) receives.push_back((*connection)->receive({&into, 1}));

  const wire::Message& tells = kTells[GetParam()];
  const bool is_word = std::holds_alternative<wire::SendsEnded>(tells);
  const std::string text =
      hostile_text(is_word ? engine::MessageStream::kMaxFrameBytes : wire::kMaxFrameBytes);
  const Bytes said = with_text(tells, text);
  EXPECT_TRUE(is_word ? peer.say_words(0, 0, said) : peer.say(said));
  const bool is_end = std::holds_alternative<wire::Bye>(tells);
  ASSERT_EQ(is_end ? ::shutdown(peer.fd(), SHUT_WR) : 0, 0);
  std::size_t bytes = 0;
  for (const auto& receive : receives) {
    ASSERT_TRUE(eventually([&] { return receive->done(); }));
    const std::string message = receive->status().error().message;
    bytes = std::max(bytes, message.size());
    EXPECT_TRUE(std::ranges::all_of(message, [](char c) { return c >= ' ' && c <= '~'; })) << message;
  }
  EXPECT_LT(bytes, 1200U);
  EXPECT_GT(bytes, 900U) << "the text is shown: " << receives.back()->status().error().message;
  for (const auto& route : (*connection)->report().routes()) EXPECT_LT(route.reason.size(), 1200U);
}
INSTANTIATE_TEST_SUITE_P(Of, TextTest, ::testing::Range(std::size_t{0}, kTells.size()),
                         [](const auto& one) { return std::string(wire::name(kTells[one.param])); });

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
