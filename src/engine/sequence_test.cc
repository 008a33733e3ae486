// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "support/sequence.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <random>
#include <vector>

#include "base/error.h"
#include "support/bounds.h"
#include "support/eventually.h"

namespace p2p::testing {
namespace {

using namespace std::chrono_literals;

Bytes address(PlainAddress kind = PlainAddress::kGood) { return {static_cast<std::byte>(kind)}; }
const wire::ChannelOffer kOffer{"plain", {address(), address()}};
const wire::ChannelAnswer kAnswer{"plain", "", {address(), address()}};
const wire::ChannelsReady kReady{"plain", ""};
const wire::ChannelsReady kGivenUp{"plain", "no more"};

/// How far the channels of the one transport are when a message comes.
enum Stage : unsigned {
  kIntroduced = 1,  ///< the endpoint's offer was not answered; or none was made to it
  kConnected = 2,   ///< answered; the endpoint's channels come up, the raw peer has not said so of its own
  kOpen = 4,
  kLost = 8,  ///< the raw peer gave the transport up after it was connected
  kAlways = kIntroduced | kConnected | kOpen | kLost,
  kNever = 0,
};

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
      {"given up", kGivenUp, kIntroduced | kConnected, kIntroduced | kConnected},
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
      {"revocation", wire::RegionRevoke{1, 4711}, kAlways, kAlways},
      {"revoked that was not asked", wire::RegionRevoked{4711}, kAlways, kAlways},
      {"receive outside of words", receive, kNever, kNever},
      {"notification outside of words", wire::Notify{.total = 2, .offset = 0, .piece = Bytes(2)}, kNever,
       kNever},
      {"words that are no block", wire::Words{Bytes(16)}, kNever, kNever},
      {"words that acknowledge what was not said", wire::Words{block(0, 1)}, kNever, kNever},
      {"words with a gap before them", wire::Words{block(1, 0)}, kNever, kNever},
      {"words of none", wire::Words{block(0, 0)}, kAlways, kAlways},
      {"heartbeat", wire::Heartbeat{}, kAlways, kAlways},
      {"handled, which was not agreed", wire::Handled{}, kNever, kNever},
      {"to go on over this connection", wire::Resume{}, kNever, kNever},
      {"answer to who did not dial again", wire::ResumeAnswer{}, kNever, kNever},
      {"gone on, while it never stopped", wire::Resumed{}, kNever, kNever},
      {"hello", wire::Hello{}, kNever, kNever},
      {"introduction", wire::Introduction{}, kNever, kNever},
  };
}

std::vector<Case> words() {
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
      {"notification", wire::Notify{.notification = 9, .total = 2, .offset = 0, .piece = Bytes(2)}, kAlways,
       kAlways},
      {"notification from its middle", wire::Notify{.total = 4, .offset = 2, .piece = Bytes(2)}, kNever,
       kNever},
      {"notification done that was not sent", wire::NotifyDone{4711}, kAlways, kAlways},
      {"bye as a word", wire::Bye{"why not"}, kNever, kNever},
      {"words as a word", wire::Words{block(0, 0)}, kNever, kNever},
  };
}

class SequenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.listen_address = "127.0.0.1";
    make_endpoint();
  }

  void make_endpoint(bool rests = true) {
    TransportRegistry registry{{PlainTransport::entry("plain", rests), PlainTransport::entry("spare")}};
    for (const auto& entry : builtin_transports().entries) {
      if (entry.name == "tcp") registry.entries.push_back(entry);
    }
    endpoint_ = engine::Endpoint::create(options_, registry).value();
  }

  /// A raw peer that the endpoint has dialled, or that has dialled it, with the channels of "plain" at some
  /// stage. Those of "spare" are up, so that the connection outlives the loss of "plain".
  std::optional<RawPeer> peer_at(Stage stage, bool dialled) {
    if (dialled) static_cast<void>(endpoint_->connect("127.0.0.1", listener_.port(), 20s, std::nullopt));
    RawPeer peer = dialled ? listener_.accept() : RawPeer::dial(endpoint_->port());
    peer.speak(newest_);
    const bool shaken = peer.shake_hands(dialled ? Role::kAcceptor : Role::kConnector, {"plain", "spare"});
    if (!shaken || !bring_up(peer, "spare", dialled)) return std::nullopt;
    peer.say(wire::ChannelsReady{"spare", ""});
    connection_ = endpoint_->connections().back();
    if (stage == kIntroduced) return peer;
    if (!bring_up(peer, "plain", dialled)) return std::nullopt;
    if (stage == kOpen) peer.say(kReady);
    if (stage == kLost) peer.say(kGivenUp);
    return peer;
  }

  // False if the endpoint does not say that its channels are ready.
  static bool bring_up(RawPeer& peer, const std::string& transport, bool dialled) {
    const std::vector<Bytes> addresses{address(), address()};
    if (dialled) {
      peer.say(wire::ChannelAnswer{transport, "", addresses});
    } else {
      peer.say(wire::ChannelOffer{transport, addresses});
    }
    const auto ready = peer.next_of<wire::ChannelsReady>();
    return ready && ready->transport == transport && ready->reason.empty();
  }

  /// What comes after the message is still answered.
  static bool is_kept(RawPeer& peer) {
    peer.say(wire::RegionQuery{4242, 4711, {}});
    while (const auto answer = peer.next_of<wire::RegionAnswer>()) {
      if (answer->query == 4242) return true;
    }
    return false;
  }

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

  Options options_;
  std::uint16_t newest_ = wire::kVersions.newest;  // of the raw peer
  std::unique_ptr<engine::Endpoint> endpoint_;
  std::shared_ptr<engine::Connection> connection_;
  RawListener listener_;
};

TEST_F(SequenceTest, EveryMessageAtEveryStageIsTakenOrABreach) {
  expect_kept_or_breach(cases(), [](RawPeer& peer, const wire::Message& message) { peer.say(message); });
}

TEST_F(SequenceTest, EveryWordAtEveryStageIsTakenOrABreach) {
  expect_kept_or_breach(words(), [](RawPeer& peer, const wire::Message& message) { peer.say_word(message); });
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
    const auto handled = peer.next_of<wire::Handled>();
    ASSERT_TRUE(handled);
    EXPECT_EQ(handled->messages, 1U);
    peer.say(wire::Handled{0});
    EXPECT_TRUE(is_kept(peer));
    peer.say(again ? wire::Message(wire::Resumable{.token = offered->token})
                   : wire::Message(wire::Handled{1'000'000}));
    EXPECT_FALSE(is_kept(peer)) << "twice, or more than was said";
  }
}

TEST_F(SequenceTest, WordsAreAnsweredOverTheSession) {
  auto peer = peer_at(kOpen, true);
  ASSERT_TRUE(peer);
  for (std::uint64_t number = 0; number < 3; ++number) {
    peer->say_word(wire::Notify{.notification = number, .total = 0, .offset = 0, .piece = {}});
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
    ASSERT_TRUE(eventually([&] { return connection_->routes().front().detail == "2 channels: plain"; }));
    for (std::uint32_t number = 1; number < 4 * 64; number += 64) {
      peer->say(wire::ChannelControl{"plain", number, Bytes(1, std::byte{0xff})});
      ASSERT_TRUE(
          eventually([&] { return connection_->routes().front().detail == "1 of 2 channels: plain"; }));
      if (dialled) {
        const auto again = peer->next_of<wire::ChannelReopen>();
        ASSERT_TRUE(again);
        EXPECT_EQ(again->channel, number + 64);
        peer->say(wire::ChannelReopened{"plain", number + 64, "", address()});
      } else {
        peer->say(wire::ChannelReopen{"plain", number + 64, address()});
        const auto answer = peer->next_of<wire::ChannelReopened>();
        ASSERT_TRUE(answer);
        EXPECT_EQ(answer->channel, number + 64);
        EXPECT_EQ(answer->reason, "");
      }
      ASSERT_TRUE(eventually([&] { return connection_->routes().front().detail == "2 channels: plain"; }));
    }
  }
}

TEST_F(SequenceTest, AChannelThatIsNotTakenUpIsTriedAgain) {
  auto peer = peer_at(kOpen, true);
  ASSERT_TRUE(peer);
  peer->say(wire::ChannelControl{"plain", 1, Bytes(1, std::byte{0xff})});
  peer->say(wire::ChannelControl{"plain", 1, Bytes(1)});  // late, for what is lost by now
  for (std::uint32_t number = 65; number < 5 * 64; number += 64) {
    const auto again = peer->next_of<wire::ChannelReopen>();
    ASSERT_TRUE(again);
    EXPECT_EQ(again->channel, number);
    switch (number / 64) {
      case 1: peer->say(wire::ChannelReopened{"plain", number, "not now", {}}); break;
      case 2: peer->say(wire::ChannelReopened{"plain", number, "", address(PlainAddress::kRefused)}); break;
      case 3:
        peer->say(wire::ChannelReopened{"plain", number, "", address(PlainAddress::kNeverReady)});
        break;
      default: peer->say(wire::ChannelReopened{"plain", number, "", address()});
    }
  }
  EXPECT_TRUE(eventually([&] { return connection_->routes().front().detail == "2 channels: plain"; }));
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
    EXPECT_TRUE(eventually([&] { return connection_->routes().front().detail == "1 of 2 channels: plain"; }));
    if (kind == PlainAddress::kNeverReady) continue;
    const auto again = peer->next_of<wire::ChannelReopen>();
    ASSERT_TRUE(again);
    peer->say(wire::ChannelReopened{"plain", again->channel, "", address()});
    EXPECT_TRUE(eventually([&] { return connection_->routes().front().detail == "2 channels: plain"; }));
  }
}

/// All channels of "plain" are lost, and "spare" serves meanwhile.
class LostTest : public SequenceTest {
 protected:
  void SetUp() override {
    options_.listen_address = "127.0.0.1";
    options_.keepalive = 400ms;
    make_endpoint(false);
  }

  std::optional<RawPeer> peer_that_lost_all(bool dialled) {
    auto peer = peer_at(kOpen, dialled);
    if (!peer || !eventually([&] { return route().detail == "2 channels: plain"; })) return std::nullopt;
    for (const std::uint32_t channel : {0U, 1U}) {
      peer->say(wire::ChannelControl{"plain", channel, Bytes(1, std::byte{0xff})});
    }
    EXPECT_TRUE(eventually([&] { return route().transport == "spare"; }));
    return peer;
  }

  bool is_why(const std::string& reason) const {
    return eventually([&] { return route().reason.find("plain: " + reason) != std::string::npos; });
  }

  Route route() const { return connection_->routes().front(); }
};

TEST_F(LostTest, AllChannelsComeBack) {
  for (const bool dialled : {true, false}) {
    SCOPED_TRACE(dialled ? "by who dialled" : "by who was dialled");
    auto peer = peer_that_lost_all(dialled);
    ASSERT_TRUE(peer);
    EXPECT_TRUE(is_why("its channels were lost, and are being opened again")) << route().reason;
    for (const std::uint32_t number : {64U, 65U}) {
      if (dialled) {
        const auto again = peer->next_of<wire::ChannelReopen>();
        ASSERT_TRUE(again);
        peer->say(wire::ChannelReopened{"plain", again->channel, "", address()});
      } else {
        peer->say(wire::ChannelReopen{"plain", number, address()});
      }
    }
    EXPECT_TRUE(eventually([&] { return route().detail == "2 channels: plain"; })) << route().detail;
    EXPECT_EQ(connection_->state(), ConnectionState::kOpen);
  }
}

// Also where one hangs: each is tried more than once in less time than one may take while others serve.
TEST_F(LostTest, TheyAreTriedUntilTheTimeIsOver) {
  for (const auto kind : {PlainAddress::kNeverReady, PlainAddress::kRefused, PlainAddress::kFailsLater}) {
    SCOPED_TRACE(static_cast<unsigned>(kind));
    auto peer = peer_that_lost_all(true);
    ASSERT_TRUE(peer);
    unsigned tried = 0;
    while (const auto again = peer->next_of<wire::ChannelReopen>(3s)) {
      peer->say(wire::ChannelReopened{"plain", again->channel, "", address(kind)});
      ++tried;
    }
    EXPECT_GE(tried, 4U);
    EXPECT_TRUE(is_why("none of its channels came back in time")) << route().reason;
    EXPECT_EQ(connection_->state(), ConnectionState::kOpen) << "the spare ones serve";
  }
}

// One of version 6 takes another attempt for a breach, unless it is for channels that may rest.
TEST_F(LostTest, ChannelsToAnOldPeerStayLost) {
  newest_ = 6;
  for (const bool dialled : {true, false}) {
    auto peer = peer_that_lost_all(dialled);
    ASSERT_TRUE(peer);
    EXPECT_TRUE(is_why("told to fail")) << route().reason;
    EXPECT_TRUE(is_kept(*peer));
  }
  make_endpoint(true);
  auto peer = peer_that_lost_all(true);
  ASSERT_TRUE(peer);
  EXPECT_TRUE(peer->next_of<wire::ChannelReopen>());
}

class RestTest : public SequenceTest {
 protected:
  void make_impatient_endpoint() {
    options_.idle = 30ms;
    options_.connect_timeout = 300ms;
    make_endpoint();
  }

  /// A raw peer with both transports up, of which the endpoint has let "plain" rest, or asked the peer to.
  std::optional<RawPeer> peer_at_rest(bool dialled) {
    make_impatient_endpoint();
    auto peer = peer_at(kOpen, dialled);
    if (!peer || !next_of_plain<wire::ChannelsRest>(*peer)) return std::nullopt;
    if (!dialled) peer->say(wire::ChannelsRest{"plain"});
    EXPECT_TRUE(eventually([&] { return detail() == kAtRest; })) << detail();
    EXPECT_TRUE(is_kept(*peer));  // whatever the endpoint was at, it is through with it
    return peer;
  }

  template <class Message>
  static std::optional<Message> next_of_plain(RawPeer& peer) {
    auto came = peer.next_of<Message>();
    while (came && came->transport != "plain") came = peer.next_of<Message>();
    return came;
  }

  /// The endpoint, which dialled, opens both again, and they come up.
  static void expect_opened_again(RawPeer& peer) {
    for (int i = 0; i != 2; ++i) {
      const auto again = next_of_plain<wire::ChannelReopen>(peer);
      ASSERT_TRUE(again);
      EXPECT_GE(again->channel, 64U);
      peer.say(wire::ChannelReopened{"plain", again->channel, "", address()});
    }
  }

  std::string detail() const { return connection_->routes().front().detail; }

  static constexpr const char* kAtRest = "2 channels at rest, opened by the next use";
};

TEST_F(RestTest, ChannelsThatNothingUsesRestAndComeBack) {
  for (const bool dialled : {true, false}) {
    SCOPED_TRACE(dialled ? "by who dialled" : "by who was dialled");
    auto peer = peer_at_rest(dialled);
    ASSERT_TRUE(peer);
    static_cast<void>(connection_->notify("wake"));
    if (dialled) {
      expect_opened_again(*peer);
    } else {
      ASSERT_TRUE(next_of_plain<wire::ChannelsWanted>(*peer));
      for (const std::uint32_t number : {64U, 65U})
        peer->say(wire::ChannelReopen{"plain", number, address()});
    }
    // They are up until nothing has used them for a while again.
    EXPECT_TRUE(next_of_plain<wire::ChannelsRest>(*peer));
    EXPECT_EQ(connection_->state(), ConnectionState::kOpen);
  }
}

TEST_F(RestTest, ChannelsAreOpenedAtThePeersWord) {
  auto peer = peer_at_rest(true);
  ASSERT_TRUE(peer);
  peer->say(wire::ChannelsWanted{"plain"});
  peer->say(wire::ChannelsWanted{"plain"});  // it does not know yet that they are being opened
  expect_opened_again(*peer);
  EXPECT_TRUE(next_of_plain<wire::ChannelsRest>(*peer));
}

TEST_F(RestTest, ChannelsForWhichThePeerHasNoUseRest) {
  auto peer = peer_at(kOpen, true);
  ASSERT_TRUE(peer);
  ASSERT_TRUE(eventually([&] { return detail() == "2 channels: plain"; }));
  peer->say(wire::ChannelsRest{"plain"});
  EXPECT_TRUE(next_of_plain<wire::ChannelsRest>(*peer));
  EXPECT_TRUE(eventually([&] { return detail() == kAtRest; })) << detail();
  EXPECT_EQ(endpoint_->stats().channels_lost, 0U);
  static_cast<void>(connection_->notify("wake"));
  expect_opened_again(*peer);
  EXPECT_TRUE(eventually([&] { return detail() == "2 channels: plain"; })) << detail();
}

// The channels of the side that was dialled end a moment after the word, and that is no loss.
TEST_F(RestTest, TheEndOfChannelsThatRestIsNoLoss) {
  auto peer = peer_at(kOpen, false);
  ASSERT_TRUE(peer);
  peer->say(wire::ChannelsRest{"plain"});
  for (const std::uint32_t channel : {0U, 1U}) {
    peer->say(wire::ChannelControl{"plain", channel, Bytes(1, std::byte{0xff})});
  }
  ASSERT_TRUE(is_kept(*peer));
  EXPECT_EQ(detail(), kAtRest);
  EXPECT_EQ(endpoint_->stats().channels_lost, 0U);
  static_cast<void>(connection_->notify("wake"));
  ASSERT_TRUE(next_of_plain<wire::ChannelsWanted>(*peer));
  for (const std::uint32_t number : {64U, 65U}) peer->say(wire::ChannelReopen{"plain", number, address()});
  EXPECT_TRUE(eventually([&] { return detail() == "2 channels: plain"; })) << detail();
}

TEST_F(RestTest, ChannelsThatCannotBeOpenedAgainAreLost) {
  for (const bool dialled : {true, false}) {
    SCOPED_TRACE(dialled ? "by who dialled" : "by who was dialled");
    auto peer = peer_at_rest(dialled);
    ASSERT_TRUE(peer);
    static_cast<void>(connection_->notify("wake"));
    if (!dialled) {
      ASSERT_TRUE(next_of_plain<wire::ChannelsWanted>(*peer));
      peer->say(wire::ChannelReopen{"plain", 65, address(PlainAddress::kNeverReady)});
    }
    while (dialled) {
      const auto again = peer->next_of<wire::ChannelReopen>(1s);
      if (!again) break;
      peer->say(wire::ChannelReopened{again->transport, again->channel, "no room", {}});
    }
    ASSERT_TRUE(eventually([&] { return connection_->routes().front().transport != "plain"; }));
    const std::string why = connection_->routes().front().reason;
    EXPECT_NE(why.find(dialled ? "no room" : "not opened again in time"), std::string::npos) << why;
  }
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
