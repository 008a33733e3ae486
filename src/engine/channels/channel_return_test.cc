// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Channels that are all lost, or at rest, between an endpoint and a raw peer.
#include "engine/transfer/prepared_list.h"
#include "support/sequence_ends.h"

namespace p2p::testing {
namespace {

/// All channels of "plain" are lost, and "spare" serves meanwhile.
class LostTest : public SequenceTest {
 protected:
  void SetUp() override {
    options_.listen_address = "127.0.0.1";
    options_.keepalive = 400ms;
    make_endpoint(false);
  }

  std::optional<RawPeer> peer_with_all(bool dialled) {
    auto peer = peer_at(kOpen, dialled);
    if (!peer || !eventually([&] { return both_serve(); })) return std::nullopt;
    return peer;
  }

  void lose_all(RawPeer& peer) {
    for (const std::uint32_t channel : {0U, 1U}) {
      peer.say(wire::ChannelControl{"plain", channel, Bytes(1, std::byte{0xff})});
    }
    EXPECT_TRUE(eventually([&] { return route().transport == "spare"; }));
  }

  std::optional<RawPeer> peer_that_lost_all(bool dialled) {
    auto peer = peer_with_all(dialled);
    if (peer) lose_all(*peer);
    return peer;
  }

  /// A write to memory of the raw peer that "plain" alone reaches.
  std::shared_ptr<engine::TransferState> write_by_plain(RawPeer& peer) {
    const auto list = prepare(peer, {{"plain", Bytes(1)}});
    return list ? (*list)->post({}) : engine::failed_transfer(list.error());
  }

  /// The same for many times, to memory that those reach whose keys they are.
  Result<std::shared_ptr<engine::PreparedList>> prepare(RawPeer& peer, std::vector<wire::ExportedKey> keys) {
    const RegionDescriptor there = memory_there(memory_.size());
    region_ = endpoint_->register_memory(memory_.data(), memory_.size(), {});
    const auto id = connection_->import_region(there);
    if (!id || !region_ || !tell_of(peer, there, std::move(keys)))
      return fail(ErrorCode::kSystem, "not begun");
    const Status ready = connection_->wait_imported(*id, 10s);
    if (!ready) return tl::unexpected(ready.error());
    const LocalSpan from = region_->span();
    const RemoteSpan to{*id, there.address, there.size};
    return engine::PreparedList::make(connection_->transfers(), Operation::kWrite, {&from, 1}, {&to, 1});
  }

  /// A raw peer with all channels, and a list that both transports reach.
  void begin_with_both(bool dialled) {
    peer_ = peer_with_all(dialled);
    ASSERT_TRUE(peer_);
    list_ = prepare(*peer_, {{"plain", Bytes(1)}, {"spare", Bytes(1)}});
    ASSERT_TRUE(list_);
  }

  bool is_why(const std::string& reason) const {
    return eventually([&] { return route().reason.find("plain: " + reason) != std::string::npos; });
  }

  Route route() const { return connection_->report().routes().front(); }

  std::optional<RawPeer> peer_;
  Result<std::shared_ptr<engine::PreparedList>> list_ = fail(ErrorCode::kNotFound, "not begun");
  std::vector<std::byte> memory_ = std::vector<std::byte>(64);
  Result<MemoryRegion> region_ = fail(ErrorCode::kNotFound, "not registered");
};

TEST_F(LostTest, AllChannelsComeBack) {
  for (const bool dialled : {true, false}) {
    SCOPED_TRACE(dialled ? "by who dialled" : "by who was dialled");
    auto peer = peer_that_lost_all(dialled);
    ASSERT_TRUE(peer);
    EXPECT_TRUE(is_why("its channels were lost, and are being opened again")) << route().reason;
    if (dialled) {
      EXPECT_TRUE(open_again(*peer)) << route().detail;
      continue;
    }
    for (const std::uint32_t number : {64U, 65U}) peer->say(wire::ChannelReopen{"plain", number, address()});
    EXPECT_TRUE(eventually([&] { return both_serve(); })) << route().detail;
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

// Neither side waits for what the other has given up: what was queued there, and goes no other way, fails at
// once, for the same reason.
TEST_F(LostTest, WhoGivesATransportUpIsHeard) {
  for (const bool dialled : {true, false}) {
    SCOPED_TRACE(dialled ? "by who dialled" : "by who was dialled");
    auto peer = peer_that_lost_all(dialled);
    ASSERT_TRUE(peer);
    const auto waits = write_by_plain(*peer);
    EXPECT_FALSE(waits->wait(50ms)) << "for channels that come back";
    peer->say(kGivenUp);
    const Status ended = waits->wait(10s);
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code, ErrorCode::kPeerGone);
    EXPECT_NE(ended.error().message.find("no more"), std::string::npos) << ended.error().message;
    EXPECT_TRUE(is_why("the peer gave it up: no more")) << route().reason;
    EXPECT_TRUE(is_kept(*peer));
    EXPECT_EQ(connection_->state(), ConnectionState::kOpen) << "the spare ones serve";
    peer->say(kGivenUp);
    EXPECT_FALSE(is_kept(*peer)) << "it has said so";
  }
}

TEST_F(LostTest, WhatWaitedGoesOverTheNextTransport) {
  for (const bool dialled : {true, false}) {
    SCOPED_TRACE(dialled ? "by who dialled" : "by who was dialled");
    ASSERT_NO_FATAL_FAILURE(begin_with_both(dialled));
    lose_all(*peer_);
    const auto waits = (*list_)->post({});
    EXPECT_FALSE(waits->wait(50ms)) << "for channels that come back";
    peer_->say(kGivenUp);
    EXPECT_TRUE(waits->wait(10s));
    EXPECT_TRUE((*list_)->post({})->wait(10s)) << "what was prepared before serves on";
    EXPECT_TRUE(is_kept(*peer_));
  }
}

// Channels come up, and are lost as soon as they are used.
TEST_F(LostTest, WhatNoChannelCarriesGoesOverTheNextTransport) {
  for (const bool required : {false, true}) {
    SCOPED_TRACE(required ? "none is allowed" : "");
    options_.required = required ? "plain" : "";
    make_endpoint(false);
    ASSERT_NO_FATAL_FAILURE(begin_with_both(true));
    lose_all(*peer_);
    const auto waits = (*list_)->post({});
    ASSERT_TRUE(eventually([&] {
      const auto again = peer_->next_of<wire::ChannelReopen>(1ms);
      if (again) {
        peer_->say(wire::ChannelReopened{"plain", again->channel, "", address(PlainAddress::kLosesAll)});
      }
      peer_->say(wire::Heartbeat{});
      return waits->done();
    }));
    EXPECT_EQ(waits->wait(1ms).has_value(), !required);
    EXPECT_TRUE(is_kept(*peer_));
  }
}

TEST_F(LostTest, NothingElseServesWhereItIsRequired) {
  options_.required = "plain";
  make_endpoint(false);
  ASSERT_NO_FATAL_FAILURE(begin_with_both(true));
  lose_all(*peer_);
  const auto waits = (*list_)->post({});
  peer_->say(kGivenUp);
  const Status ended = waits->wait(10s);
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kPeerGone);
  EXPECT_NE(ended.error().message.find("UCCL_P2P_REQUIRE"), std::string::npos) << ended.error().message;
}

// Those that are up here may still have work under way, which is known to be over once they have ended.
TEST_F(LostTest, ChannelsThatAreUpEndByThemselves) {
  for (const bool dialled : {true, false}) {
    SCOPED_TRACE(dialled ? "by who dialled" : "by who was dialled");
    ASSERT_NO_FATAL_FAILURE(begin_with_both(dialled));
    peer_->say(kGivenUp);
    EXPECT_TRUE(eventually([&] { return route().transport == "spare"; }));
    for (const std::uint32_t channel : {0U, 1U, 64U, 3U}) {
      peer_->say(wire::ChannelControl{"plain", channel, Bytes(1, std::byte{0xff})});
    }
    EXPECT_TRUE((*list_)->post({})->wait(10s));
  }
}

TEST_F(LostTest, ThePeerHearsWhatIsGivenUpHere) {
  options_.hung = 4s;
  make_endpoint(false);
  for (const bool dialled : {true, false}) {
    SCOPED_TRACE(dialled ? "by who dialled" : "by who was dialled");
    auto peer = peer_that_lost_all(dialled);
    ASSERT_TRUE(peer);
    std::optional<wire::ChannelsReady> told;
    ASSERT_TRUE(eventually([&] {  // the raw peer lives, and opens nothing again
      peer->say(wire::Heartbeat{});
      told = peer->next_of<wire::ChannelsReady>(10ms);
      return told.has_value();
    }));
    EXPECT_EQ(told->transport, "plain");
    EXPECT_NE(told->reason.text().find("none of its channels came back"), std::string::npos)
        << told->reason.text();
    peer->say(kGivenUp);  // on its way meanwhile
    EXPECT_TRUE(is_kept(*peer));
    EXPECT_TRUE(is_why("none of its channels came back")) << "what was known first stays";
  }
}

class IdleChannelsTest : public SequenceTest {
 protected:
  void make_impatient_endpoint() {
    options_.idle = 30ms;
    options_.connect_timeout = 5s;
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

  /// The endpoint, which dialled, opens both again, and lets them rest when nothing has used them for a
  /// while.
  static void expect_opened_until_rest(RawPeer& peer) {
    while (const auto came = peer.next()) {
      if (const auto* again = std::get_if<wire::ChannelReopen>(&*came);
          again && again->transport == "plain") {
        EXPECT_GE(again->channel, 64U);
        peer.say(wire::ChannelReopened{"plain", again->channel, "", address()});
      }
      const auto* rest = std::get_if<wire::ChannelsRest>(&*came);
      if (rest && rest->transport == "plain") return;
    }
    FAIL() << "they never rest";
  }

  std::string detail() const { return connection_->report().routes().front().detail; }

  static constexpr const char* kAtRest = "2 channels at rest, opened by the next use";
};

TEST_F(IdleChannelsTest, ChannelsThatNothingUsesRestAndComeBack) {
  for (const bool dialled : {true, false}) {
    SCOPED_TRACE(dialled ? "by who dialled" : "by who was dialled");
    auto peer = peer_at_rest(dialled);
    ASSERT_TRUE(peer);
    static_cast<void>(connection_->notify("wake"));
    if (dialled) {
      expect_opened_until_rest(*peer);
    } else {
      ASSERT_TRUE(next_of_plain<wire::ChannelsWanted>(*peer));
      for (const std::uint32_t number : {64U, 65U})
        peer->say(wire::ChannelReopen{"plain", number, address()});
      EXPECT_TRUE(next_of_plain<wire::ChannelsRest>(*peer));
    }
    EXPECT_EQ(connection_->state(), ConnectionState::kOpen);
  }
}

TEST_F(IdleChannelsTest, ChannelsAreOpenedAtThePeersWord) {
  auto peer = peer_at_rest(true);
  ASSERT_TRUE(peer);
  peer->say(wire::ChannelsWanted{"plain"});
  peer->say(wire::ChannelsWanted{"plain"});  // it does not know yet that they are being opened
  expect_opened_until_rest(*peer);
}

TEST_F(IdleChannelsTest, ChannelsForWhichThePeerHasNoUseRest) {
  auto peer = peer_at(kOpen, true);
  ASSERT_TRUE(peer);
  ASSERT_TRUE(eventually([&] { return both_serve(); }));
  peer->say(wire::ChannelsRest{"plain"});
  EXPECT_TRUE(next_of_plain<wire::ChannelsRest>(*peer));
  EXPECT_TRUE(eventually([&] { return detail() == kAtRest; })) << detail();
  EXPECT_EQ(endpoint_->stats().channels_lost, 0U);
  static_cast<void>(connection_->notify("wake"));
  EXPECT_TRUE(open_again(*peer)) << detail();
}

// The channels of the side that was dialled end a moment after the message, and that is no loss.
TEST_F(IdleChannelsTest, TheEndOfChannelsThatRestIsNoLoss) {
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
  EXPECT_TRUE(eventually([&] { return both_serve(); })) << detail();
}

TEST_F(IdleChannelsTest, ChannelsThatCannotBeOpenedAgainAreLost) {
  for (const bool dialled : {true, false}) {
    SCOPED_TRACE(dialled ? "by who dialled" : "by who was dialled");
    auto peer = peer_at_rest(dialled);
    ASSERT_TRUE(peer);
    static_cast<void>(connection_->notify("wake"));
    if (!dialled) {
      ASSERT_TRUE(next_of_plain<wire::ChannelsWanted>(*peer));
      peer->say(wire::ChannelReopen{"plain", 65, address(PlainAddress::kNeverReady)});
    }
    ASSERT_TRUE(eventually([&] {
      const auto again = peer->next_of<wire::ChannelReopen>(1ms);
      if (again) peer->say(wire::ChannelReopened{again->transport, again->channel, "no room", {}});
      return connection_->report().routes().front().transport != "plain";
    }));
    const std::string why = connection_->report().routes().front().reason;
    EXPECT_NE(why.find(dialled ? "no room" : "not opened again in time"), std::string::npos) << why;
  }
}

}  // namespace
}  // namespace p2p::testing
