// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "support/sequence.h"

#include <array>
#include <optional>
#include <random>
#include <vector>

#include "base/error.h"
#include "support/sequence_ends.h"

namespace p2p::testing {
namespace {

constexpr std::array kStages{kIntroduced, kConnected, kOpen, kLost};

struct Case {
  const char* name;
  wire::Message message;
  unsigned kept_by_dialler;   ///< stages in which an endpoint that dialled takes it; in others it is a breach
  unsigned kept_by_acceptor;  ///< the same of one that was dialled
};

Bytes block(std::uint64_t offset, std::uint64_t acknowledged) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.put(offset);
  writer.put(acknowledged);
  writer.put(std::uint8_t{0});
  return bytes;
}

std::vector<Case> cases() {
  const wire::ReceivePosted receive{0, 0, {{.region = 9, .address = 4096, .size = 8}}};
  return {
      {"offer", kOffer, kNever, kIntroduced},
      {"offer of another", wire::ChannelOffer{"other", {address()}}, kNever, kNever},
      {"offer of none", wire::ChannelOffer{"plain", {}}, kNever, kNever},
      {"offer of too many", wire::ChannelOffer{"plain", std::vector<Bytes>(65, address())}, kNever, kNever},
      {"offer that is nonsense", wire::ChannelOffer{"plain", {Bytes(9)}}, kNever, kIntroduced},
      {"answer", kAnswer, kIntroduced, kNever},
      {"answer of fewer", wire::ChannelAnswer{"plain", "", {address()}}, kIntroduced, kNever},
      {"answer of more", wire::ChannelAnswer{"plain", "", std::vector<Bytes>(3, address())}, kIntroduced,
       kNever},
      {"answer of a closed port",
       wire::ChannelAnswer{"plain", "", {address(), address(PlainAddress::kRefused)}}, kIntroduced, kNever},
      {"refusal", wire::ChannelAnswer{"plain", "no", {}}, kIntroduced, kNever},
      {"answer about another", wire::ChannelAnswer{"other", "", {address()}}, kNever, kNever},
      {"ready", kReady, kConnected, kConnected},
      {"given up", kGivenUp, kIntroduced | kConnected | kOpen, kIntroduced | kConnected | kOpen},
      {"another ready", wire::ChannelsReady{"other", ""}, kNever, kNever},
      {"control", wire::ChannelControl{"plain", 1, Bytes(1)}, kConnected | kOpen | kLost,
       kConnected | kOpen | kLost},
      {"control that a channel refuses", wire::ChannelControl{"plain", 1, Bytes(1, std::byte{0xff})},
       kConnected | kOpen | kLost, kConnected | kOpen | kLost},
      {"control of one too many", wire::ChannelControl{"plain", 2, Bytes(1)}, kLost, kLost},
      {"control of another", wire::ChannelControl{"other", 0, Bytes(1)}, kNever, kNever},
      {"channel opened again", wire::ChannelReopen{"plain", 65, address()}, kLost, kOpen | kLost},
      {"channel opened again that has no place", wire::ChannelReopen{"plain", 66, address()}, kLost, kLost},
      {"channel opened again by its old number", wire::ChannelReopen{"plain", 1, address()}, kLost, kLost},
      {"channel of another opened again", wire::ChannelReopen{"other", 65, address()}, kNever, kNever},
      {"answer about what was not opened again", wire::ChannelReopened{"plain", 65, "", address()}, kLost,
       kLost},
      {"channels at rest", wire::ChannelsRest{"plain"}, kOpen | kLost, kOpen | kLost},
      {"channels of another at rest", wire::ChannelsRest{"other"}, kNever, kNever},
      {"channels wanted", wire::ChannelsWanted{"plain"}, kOpen | kLost, kLost},
      {"channels of another wanted", wire::ChannelsWanted{"other"}, kNever, kNever},
      {"query", wire::RegionQuery{1, 4711, {}}, kAlways, kAlways},
      {"answer to no query", wire::RegionAnswer{.query = 1, .base = 1, .size = 1}, kNever, kNever},
      {"digest of no region", wire::DigestQuery{1, {{4711, {}}}, {{0, 1, 8}}, {4096}}, kAlways, kAlways},
      {"digest of a region that was not named", wire::DigestQuery{1, {}, {{0, 1, 8}}, {4096}}, kAlways,
       kAlways},
      {"digest of more than there may be",
       wire::DigestQuery{1, {}, {{0, 1, wire::kMostDigestBytes}, {0, 1, 1}}, {0, 0}}, kNever, kNever},
      {"digest of more regions than ranges", wire::DigestQuery{1, {{1, {}}}, {}, {}}, kNever, kNever},
      {"digest of more ranges than addresses", wire::DigestQuery{1, {}, {{0, 2, 8}}, {4096}}, kNever, kNever},
      {"digest of fewer ranges than addresses", wire::DigestQuery{1, {}, {{0, 1, 8}}, {0, 64}}, kNever,
       kNever},
      {"digest of runs of nothing", wire::DigestQuery{1, {}, {{0, 0, 8}, {0, 0, 8}}, {}}, kNever, kNever},
      {"digest whose bytes do not fit a number",
       wire::DigestQuery{1, {}, {{0, 2, std::uint64_t{1} << 63}}, {0, 0}}, kNever, kNever},
      {"digest that was not asked for", wire::DigestAnswer{.query = 1}, kNever, kNever},
      {"revocation", wire::RegionRevoke{1, 4711}, kAlways, kAlways},
      {"revoked that was not asked", wire::RegionRevoked{4711}, kAlways, kAlways},
      {"receive outside of words", receive, kNever, kNever},
      {"notification outside of words", wire::Notify{.total = 2, .offset = 0, .part = Bytes(2)}, kNever,
       kNever},
      {"words that are no block", wire::MessageBlock{Bytes(16)}, kNever, kNever},
      {"words that acknowledge what was not said", wire::MessageBlock{block(0, 1)}, kNever, kNever},
      {"words with a gap before them", wire::MessageBlock{block(1, 0)}, kNever, kNever},
      {"words of none", wire::MessageBlock{block(0, 0)}, kAlways, kAlways},
      {"heartbeat", wire::Heartbeat{}, kAlways, kAlways},
      {"handled, which was not agreed", wire::CumulativeAck{}, kNever, kNever},
      {"to go on over this connection", wire::Resume{}, kNever, kNever},
      {"answer to who did not dial again", wire::ResumeAnswer{}, kNever, kNever},
      {"gone on, while it never stopped", wire::Resumed{}, kNever, kNever},
      {"other addresses of what cannot be gone on with", wire::AlternateAddresses{}, kNever, kNever},
      {"hello", wire::Hello{}, kNever, kNever},
      {"introduction", wire::Introduction{}, kNever, kNever},
  };
}

std::vector<Case> messages() {
  const wire::ReceiveSpan span{.region = 9, .address = 4096, .size = 8};
  const auto bare = [](wire::ReceiveSpan one) { return wire::ReceivePosted{0, 0, {one}}; };
  wire::ReceiveSpan around = span;
  around.address = ~std::uint64_t{0};
  const auto eager = [](std::size_t bytes, std::vector<std::uint32_t> spans) {
    return wire::EagerMessage{.sequence = 3, .error = 0, .spans = std::move(spans), .bytes = Bytes(bytes)};
  };
  return {
      {"receive", bare(span), kAlways, kAlways},
      {"receive ahead of the others", wire::ReceivePosted{1, 0, {span}}, kAlways, kAlways},
      {"receive around the end of memory", bare(around), kNever, kNever},
      {"receive that was not posted is done", wire::ReceiveDone{.sequence = 0}, kNever, kNever},
      {"receive that was not posted is withdrawn", wire::ReceiveWithdrawn{3}, kAlways, kAlways},
      {"receive that was not posted is wanted", wire::ReceiveWanted{3}, kAlways, kAlways},
      {"message", eager(8, {}), kAlways, kAlways},
      {"message of spans", eager(8, {4, 4}), kAlways, kAlways},
      {"message of more spans than bytes", eager(8, {4, 5}), kNever, kNever},
      {"message that is too long", eager(20000, {}), kNever, kNever},
      {"message that was not sent is answered", wire::MessageAnswered{}, kNever, kNever},
      {"message that was not sent is declined", wire::MessageDeclined{}, kNever, kNever},
      {"message that did not come is withdrawn", wire::MessageWithdrawn{3}, kAlways, kAlways},
      {"end of the sends", wire::SendsEnded{"why not"}, kAlways, kAlways},
      {"notification", wire::Notify{.notification = 9, .total = 2, .offset = 0, .part = Bytes(2)}, kAlways,
       kAlways},
      {"notification from its middle", wire::Notify{.total = 4, .offset = 2, .part = Bytes(2)}, kNever,
       kNever},
      {"notification done that was not sent", wire::NotifyDone{4711}, kAlways, kAlways},
      {"bye as a word", wire::Bye{"why not"}, kNever, kNever},
      {"words as a word", wire::MessageBlock{block(0, 0)}, kNever, kNever},
  };
}

class BreachTest : public SequenceTest {
 protected:
  template <class Say>
  void expect_kept_or_breach(const std::vector<Case>& all, const Say& say) {
    for (const bool dialled : {true, false}) {
      for (const Stage stage : kStages) {
        for (const Case& one : all) {
          SCOPED_TRACE(fmt::format("{}, stage {}, {}", one.name, static_cast<unsigned>(stage),
                                   dialled ? "to who dialled" : "to who was dialled"));
          auto peer = peer_at(stage, dialled);
          ASSERT_TRUE(peer);
          say(*peer, one.message);
          const bool kept = is_kept(*peer);
          EXPECT_EQ(kept, ((dialled ? one.kept_by_dialler : one.kept_by_acceptor) & stage) != 0);
          if (kept) continue;
          EXPECT_TRUE(peer->dropped());
          peer.reset();  // whoever closes waits a moment for the other side to do so
          ASSERT_TRUE(eventually([&] { return connection_->state() == ConnectionState::kClosed; }));
          EXPECT_EQ(connection_->status().error().code, ErrorCode::kProtocol)
              << connection_->status().error().message;
        }
      }
    }
    connection_.reset();
    EXPECT_TRUE(eventually([&] { return endpoint_->connections().empty(); }));
  }
};

TEST_F(BreachTest, EveryMessageAtEveryStageIsTakenOrABreach) {
  expect_kept_or_breach(cases(), [](RawPeer& peer, const wire::Message& message) { peer.say(message); });
}

TEST_F(BreachTest, EveryWordAtEveryStageIsTakenOrABreach) {
  expect_kept_or_breach(messages(),
                        [](RawPeer& peer, const wire::Message& message) { peer.say_message(message); });
}

TEST_F(SequenceTest, TheConnectorAnswersOnceThatASessionMayGoOn) {
  auto peer = peer_at(kOpen, true);
  ASSERT_TRUE(peer);
  const wire::Resumable said{.token = {std::byte{7}}};
  peer->say(said);
  const auto answer = peer->next_of<wire::Resumable>();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->token, said.token);
  EXPECT_TRUE(is_kept(*peer));
  peer->say(said);
  EXPECT_FALSE(is_kept(*peer));
}

TEST_F(SequenceTest, OnlyItsOwnTokenGoesOnWithASession) {
  auto peer = peer_at(kOpen, false);
  ASSERT_TRUE(peer);
  peer->say(wire::Resumable{});
  EXPECT_FALSE(is_kept(*peer));
}

TEST_F(SequenceTest, TheAcceptorSaysThatASessionMayGoOn) {
  for (const bool again : {false, true}) {
    auto peer = RawPeer::dial(endpoint_->port());
    ASSERT_TRUE(peer.shake_hands(Role::kConnector, {"plain"}));
    const auto offered = peer.next_of<wire::Resumable>();
    ASSERT_TRUE(offered);
    peer.say(wire::Resumable{.token = offered->token});
    // It hears how much was handled of what it says.
    EXPECT_TRUE(is_kept(peer));
    const auto handled = peer.next_of<wire::CumulativeAck>();
    ASSERT_TRUE(handled);
    EXPECT_EQ(handled->messages, 1U);
    peer.say(wire::CumulativeAck{0});
    EXPECT_TRUE(is_kept(peer));
    peer.say(again ? wire::Message(wire::Resumable{.token = offered->token})
                   : wire::Message(wire::CumulativeAck{1'000'000}));
    EXPECT_FALSE(is_kept(peer)) << "twice, or more than was said";
  }
}

TEST_F(SequenceTest, OtherAddressesAreTakenOnceAndIfTheyAreSome) {
  using Others = wire::AlternateAddresses;
  const Others::One one{"192.0.2.1", 4000};
  const std::vector<Others> bad{{{{"nowhere", 4000}}},
                                {{{"192.0.2.1", 0}}},
                                {{{"0.0.0.0", 4000}}},
                                {std::vector<Others::One>(wire::kMostOtherAddresses + 1, one)}};
  for (std::size_t i = 0; i <= bad.size(); ++i) {
    SCOPED_TRACE(i);
    auto peer = peer_at(kOpen, true);
    ASSERT_TRUE(peer);
    peer->say(wire::Resumable{.token = {std::byte{7}}});
    if (i == bad.size()) {
      peer->say(Others{{one, {"::1", 4000}, {"fe80::1", 4000}}});
      EXPECT_TRUE(is_kept(*peer));
    }
    peer->say(i == bad.size() ? Others{{one}} : bad[i]);
    EXPECT_FALSE(is_kept(*peer));
  }
  auto peer = RawPeer::dial(endpoint_->port());
  ASSERT_TRUE(peer.shake_hands(Role::kConnector, {"plain"}));
  const auto offered = peer.next_of<wire::Resumable>();
  ASSERT_TRUE(offered);
  peer.say(wire::Resumable{.token = offered->token});
  peer.say(Others{{one}});
  EXPECT_FALSE(is_kept(peer)) << "from who dialled";
}

TEST_F(SequenceTest, WordsAreAnsweredOverTheSession) {
  auto peer = peer_at(kOpen, true);
  ASSERT_TRUE(peer);
  for (std::uint64_t number = 0; number < 3; ++number) {
    peer->say_message(wire::Notify{.notification = number, .total = 0, .offset = 0, .part = {}});
    const auto done = peer->next_of<wire::NotifyDone>();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->notification, number);
  }
}

TEST_F(SequenceTest, AChannelThatIsLostIsOpenedAgain) {
  for (const bool dialled : {true, false}) {
    SCOPED_TRACE(dialled ? "by who dialled" : "by who was dialled");
    auto peer = peer_at(kOpen, dialled);
    ASSERT_TRUE(peer);
    ASSERT_TRUE(eventually([&] { return both_serve(); }));
    std::uint32_t number = 1;
    for (int times = 0; times != 4; ++times) {
      peer->say(wire::ChannelControl{"plain", number, Bytes(1, std::byte{0xff})});
      ASSERT_TRUE(eventually(
          [&] { return connection_->report().routes().front().detail == "1 of 2 channels: plain"; }));
      if (dialled) {
        const auto again = open_again(*peer);
        ASSERT_TRUE(again);
        EXPECT_GT(*again, number);
        EXPECT_EQ(*again % 64, 1U);
        number = *again;
        continue;
      }
      number += 64;
      peer->say(wire::ChannelReopen{"plain", number, address()});
      const auto answer = peer->next_of<wire::ChannelReopened>();
      ASSERT_TRUE(answer);
      EXPECT_EQ(answer->channel, number);
      EXPECT_EQ(answer->reason, "");
      ASSERT_TRUE(eventually([&] { return both_serve(); }));
    }
  }
}

TEST_F(SequenceTest, AChannelThatIsNotTakenUpIsTriedAgain) {
  auto peer = peer_at(kOpen, true);
  ASSERT_TRUE(peer);
  peer->say(wire::ChannelControl{"plain", 1, Bytes(1, std::byte{0xff})});
  peer->say(wire::ChannelControl{"plain", 1, Bytes(1)});  // late, for what is lost by now
  for (std::uint32_t number = 65; number < 4 * 64; number += 64) {
    const auto again = peer->next_of<wire::ChannelReopen>();
    ASSERT_TRUE(again);
    EXPECT_EQ(again->channel, number);
    switch (number / 64) {
      case 1: peer->say(wire::ChannelReopened{"plain", number, "not now", {}}); break;
      case 2: peer->say(wire::ChannelReopened{"plain", number, "", address(PlainAddress::kRefused)}); break;
      default: peer->say(wire::ChannelReopened{"plain", number, "", address(PlainAddress::kNeverReady)});
    }
  }
  EXPECT_TRUE(open_again(*peer));
}

TEST_F(SequenceTest, AChannelThatFailsAtFirstHoldsUpNoOther) {
  for (const auto kind : {PlainAddress::kRefused, PlainAddress::kFailsLater, PlainAddress::kNeverReady}) {
    auto peer = peer_at(kIntroduced, true);
    ASSERT_TRUE(peer);
    peer->say(wire::ChannelAnswer{"plain", "", {address(), address(kind)}});
    const auto ready = peer->next_of<wire::ChannelsReady>();
    ASSERT_TRUE(ready);
    EXPECT_EQ(ready->reason, "");
    peer->say(kReady);
    EXPECT_TRUE(eventually(
        [&] { return connection_->report().routes().front().detail == "1 of 2 channels: plain"; }));
    if (kind == PlainAddress::kNeverReady) continue;
    EXPECT_TRUE(open_again(*peer));
  }
}

// To this side the peer closed; the peer knows the cause. Where this side has one of its own, that is told.
TEST_F(SequenceTest, WhatThePeerSaysWinsOverThatItClosed) {
  for (const auto kind : {PlainAddress::kFailsLater, PlainAddress::kRefused}) {
    for (const bool dialled : {true, false}) {
      auto peer = peer_at(kIntroduced, dialled);
      ASSERT_TRUE(peer);
      const std::vector<Bytes> addresses{address(kind), address(kind)};
      if (dialled) {
        peer->say(wire::ChannelAnswer{"plain", "", addresses});
      } else {
        peer->say(wire::ChannelOffer{"plain", addresses});
      }
      const auto given_up = peer->next_of<wire::ChannelsReady>();
      ASSERT_TRUE(given_up);
      EXPECT_NE(given_up->reason, "");
      peer->say(wire::ChannelsReady{"plain", "memfd_create: not permitted"});
      const std::string told = kind == PlainAddress::kRefused
                                   ? "plain: connect: refused"
                                   : "plain: the peer gave it up: memfd_create: not permitted";
      const auto reason = [&] { return connection_->report().routes().front().reason; };
      EXPECT_TRUE(eventually([&] { return reason().find(told) != std::string::npos; })) << reason();
      EXPECT_TRUE(is_kept(*peer));
      EXPECT_NE(reason().find(told), std::string::npos) << reason();
    }
  }
}

// Whether something else would work nobody knows.
TEST_F(SequenceTest, TimeThatRanOutIsNoInability) {
  const auto connection = endpoint_->connect("127.0.0.1", listener_.port(), 6s, std::nullopt);
  RawPeer peer = listener_.accept();
  ASSERT_TRUE(peer.shake_hands(Role::kAcceptor, {"plain"}));
  const Status opened = connection->wait_open(20s);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kTimedOut) << opened.error().message;
  EXPECT_NE(opened.error().message.find("plain: not connected in time"), std::string::npos)
      << opened.error().message;
}

// The one that crashed: what an answer gave up was connected again by the next.
TEST_F(SequenceTest, ASecondAnswerIsABreach) {
  for (const auto kind : {PlainAddress::kFailsLater, PlainAddress::kRefused, PlainAddress::kNeverReady}) {
    auto peer = peer_at(kIntroduced, true);
    ASSERT_TRUE(peer);
    peer->say(wire::ChannelAnswer{"plain", "", {address(kind), address(kind)}});
    peer->say(kAnswer);
    EXPECT_TRUE(peer->dropped());
    EXPECT_FALSE(connection_->wait_open(20s));
  }
}

// Runs that were drawn; a failing one prints what repeats it.
TEST_F(SequenceTest, RandomSequencesEndWell) {
  for (unsigned seed = 0; seed < static_cast<unsigned>(scaled(600, 200)); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937 random(seed);
    std::vector<std::uint8_t> choices(1 + random() % 300);
    for (auto& choice : choices) choice = static_cast<std::uint8_t>(random());
    EXPECT_TRUE(Sequence(*endpoint_, choices).run());
  }
  EXPECT_TRUE(eventually([&] { return endpoint_->connections().empty(); }));
  auto peer = peer_at(kOpen, true);
  ASSERT_TRUE(peer);
  EXPECT_TRUE(is_kept(*peer)) << "the endpoint still serves";
}

}  // namespace
}  // namespace p2p::testing
