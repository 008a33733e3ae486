// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <future>
#include <random>

#include "support/session_ends.h"

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

TEST_F(SessionTest, RefusesWrongAndMissingKeysOnBothSides) {
  for (const auto& [mine, theirs] : {std::pair("right", "wrong"), {"right", ""}, {"", "right"}}) {
    Side connector;
    Side acceptor;
    connect(connector, config(mine), acceptor, config(theirs));
    const Error here = connector.wait_closed();
    const Error there = acceptor.wait_closed();
    EXPECT_EQ(here.code, ErrorCode::kPermissionDenied) << here.message;
    EXPECT_EQ(there.code, ErrorCode::kPermissionDenied) << there.message;
    EXPECT_THAT(here.message, HasSubstr("key"));
    EXPECT_THAT(there.message, HasSubstr("key"));
    EXPECT_FALSE(connector.ever_opened());
    EXPECT_FALSE(acceptor.ever_opened());
  }
}

TEST_F(SessionTest, RefusesAnotherVersionWithBothNumbers) {
  auto [ours, theirs] = socket_pair();
  Side side;
  accept(side, std::move(ours), config("k"));
  Stranger stranger(std::move(theirs));
  stranger.send(wire::Hello{.version = 3});
  const auto hello = stranger.next();
  ASSERT_TRUE(hello);
  EXPECT_EQ(std::get<wire::Hello>(*hello).version, wire::kVersion);
  const auto bye = stranger.next();
  ASSERT_TRUE(bye);
  EXPECT_THAT(std::get<wire::Bye>(*bye).reason, HasSubstr("this side speaks 1, the peer 3"));
  EXPECT_TRUE(stranger.dropped());
  EXPECT_EQ(side.wait_closed().code, ErrorCode::kUnavailable);
}

TEST_F(SessionTest, DropsStrangersThatSendRandomBytes) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 50; ++round) {
    auto [ours, theirs] = socket_pair();
    Side side;
    accept(side, std::move(ours), config(round % 2 == 0 ? "" : "k"));
    Stranger stranger(std::move(theirs));
    Bytes bytes(1 + random() % 5000);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    // Never a length that is allowed, of which more would be awaited until the deadline.
    if (bytes.size() >= 4) bytes[3] = std::byte{1};
    stranger.send(bytes);
    if (bytes.size() < 4) shutdown(stranger.fd.get(), SHUT_WR);
    EXPECT_TRUE(stranger.dropped());
    const Error error = side.wait_closed();
    EXPECT_THAT(error.code, testing::AnyOf(ErrorCode::kProtocol, ErrorCode::kPeerGone)) << error.message;
    EXPECT_FALSE(side.ever_opened());
  }
}

TEST_F(SessionTest, RefusesLongFramesFromStrangers) {
  auto [ours, theirs] = socket_pair();
  Side side;
  accept(side, std::move(ours), config("k"));
  Stranger stranger(std::move(theirs));
  stranger.send(wire::Introduction{.note = std::string(2000, 'x')});
  EXPECT_TRUE(stranger.dropped());
  EXPECT_EQ(side.wait_closed().code, ErrorCode::kProtocol);
}

TEST_F(SessionTest, SurvivesAHandshakeThatIsCutAnywhere) {
  Bytes said;
  for (const wire::Message& message :
       {wire::Message(wire::Hello{.incarnation = 4}), wire::Message(wire::Introduction{.note = "n"})}) {
    ByteWriter(said).put(ByteView(wire::encode(message)));
  }
  for (std::size_t size = 0; size <= said.size(); ++size) {
    auto [ours, theirs] = socket_pair();
    Side side;
    accept(side, std::move(ours), config(""));
    Stranger stranger(std::move(theirs));
    stranger.send(ByteView(said).first(size));
    shutdown(stranger.fd.get(), SHUT_WR);
    EXPECT_TRUE(stranger.dropped());
    EXPECT_EQ(side.wait_closed().code, ErrorCode::kPeerGone);
    EXPECT_EQ(side.times_closed(), 1);
    EXPECT_EQ(side.ever_opened(), size == said.size());
  }
}

TEST_F(SessionTest, RefusesTheBytesOfAnEarlierHandshake) {
  // A relay between two honest sides takes down what the connector says.
  Side connector;
  Side acceptor;
  dial(connector, listener_.port(), config("k"));
  Stranger front(listener_.accept());
  auto [near, far] = socket_pair();
  accept(acceptor, std::move(far), config("k"));
  Stranger back(std::move(near));
  std::vector<wire::Message> overheard;
  for (int turn = 0; turn < 2; ++turn) {  // hellos, then proofs
    auto forth = front.next();
    ASSERT_TRUE(forth);
    overheard.push_back(*forth);
    back.send(*forth);
    auto reply = back.next();
    ASSERT_TRUE(reply);
    front.send(*reply);
  }
  const auto introduction = front.next();
  ASSERT_TRUE(introduction);
  overheard.push_back(*introduction);
  back.send(overheard.back());
  ASSERT_TRUE(acceptor.wait_open());

  auto [ours, theirs] = socket_pair();
  Side victim;
  accept(victim, std::move(ours), config("k"));
  Stranger replayer(std::move(theirs));
  for (const wire::Message& message : overheard) replayer.send(message);
  EXPECT_TRUE(replayer.dropped());
  EXPECT_EQ(victim.wait_closed().code, ErrorCode::kPermissionDenied);
  EXPECT_FALSE(victim.ever_opened());
  end({&connector, &acceptor, &victim});
}

TEST_F(SessionTest, GivesUpAPeerThatNeverSpeaks) {
  Side dialled;
  dial(dialled, listener_.port(), config("k"), 100ms);
  Stranger silent(listener_.accept());
  const Error error = dialled.wait_closed();
  EXPECT_EQ(error.code, ErrorCode::kTimedOut);
  EXPECT_THAT(error.message, HasSubstr("the peer's hello"));

  auto [ours, theirs] = socket_pair();
  Side accepted;
  accept(accepted, std::move(ours), config("k"), 100ms);
  EXPECT_EQ(accepted.wait_closed().code, ErrorCode::kTimedOut);
}

TEST_F(SessionTest, ClosesAPeerThatFallsSilent) {
  SessionConfig quick = config("");
  quick.keepalive = 200ms;
  Side side;
  dial(side, listener_.port(), quick);
  Stranger peer(listener_.accept());
  ASSERT_TRUE(peer.next());
  peer.send(wire::Hello{.incarnation = 2});
  peer.send(wire::Introduction{});
  ASSERT_TRUE(side.wait_open());
  const auto start = Clock::now();
  const Error error = side.wait_closed();
  EXPECT_EQ(error.code, ErrorCode::kPeerGone);
  EXPECT_THAT(error.message, HasSubstr("127.0.0.1"));
  EXPECT_THAT(error.message, HasSubstr("not heard of for 200 ms"));
  EXPECT_GE(Clock::now() - start, 100ms);
  EXPECT_LT(Clock::now() - start, 10s);
}

TEST_F(SessionTest, ClosesAPeerThatSpeaksButTakesNothing) {
  SessionConfig quick = config("");
  quick.keepalive = 2s;  // the talker must never pause for as long
  Side side;
  dial(side, listener_.port(), quick);
  Stranger peer(listener_.accept());
  ASSERT_TRUE(peer.next());
  peer.send(wire::Hello{.incarnation = 2});
  peer.send(wire::Introduction{});
  ASSERT_TRUE(side.wait_open());
  std::promise<void> stop;
  auto talker = std::async(std::launch::async, [&] {
    auto stopped = stop.get_future();
    while (stopped.wait_for(20ms) == std::future_status::timeout) peer.send(wire::Heartbeat{});
  });
  for (int i = 0; i < 64; ++i) side.session->send(wire::Notify{.piece = Bytes(512 << 10)});
  const Error error = side.wait_closed();
  stop.set_value();
  talker.get();
  EXPECT_EQ(error.code, ErrorCode::kPeerGone);
  EXPECT_THAT(error.message, testing::AnyOf(HasSubstr("took nothing"), HasSubstr("timed out")));
}

TEST_F(SessionTest, DeliversThePeersLastWordsBeforeItsEnd) {
  for (int round = 0; round < 20; ++round) {
    Side side;
    dial(side, listener_.port(), config(""));
    Stranger peer(listener_.accept());
    ASSERT_TRUE(peer.next());
    peer.send(wire::Hello{.incarnation = 2});
    peer.send(wire::Introduction{});
    ASSERT_TRUE(peer.next());
    peer.send(wire::Bye{"last words"});
    const linger reset{1, 0};
    if (round % 2 == 0) setsockopt(peer.fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    peer.fd.reset();
    EXPECT_EQ(side.wait_closed().code, ErrorCode::kPeerGone);
    ASSERT_EQ(side.messages().size(), 1U);
    EXPECT_EQ(std::get<wire::Bye>(side.messages()[0]).reason, "last words");
  }
}

TEST_F(SessionTest, RefusesHandshakeMessagesOnceOpen) {
  for (const wire::Message& message :
       {wire::Message(wire::Hello{}), wire::Message(wire::Proof{}), wire::Message(wire::Introduction{})}) {
    auto [ours, theirs] = socket_pair();
    Side side;
    accept(side, std::move(ours), config(""));
    Stranger peer(std::move(theirs));
    peer.send(wire::Hello{.incarnation = 2});
    peer.send(wire::Introduction{});
    peer.send(message);
    EXPECT_EQ(side.wait_closed().code, ErrorCode::kProtocol);
    EXPECT_TRUE(side.ever_opened());
  }
}

}  // namespace
}  // namespace p2p::engine
