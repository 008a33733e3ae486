// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Channels that follow the first one, between an endpoint and a raw peer.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/sequence_ends.h"
#include "wire/following.h"

namespace p2p::testing {
namespace {

class FollowingTest : public SequenceTest {
 protected:
  static constexpr RegionDescriptor kThere = memory_there(64);

  void SetUp() override {
    options_.listen_address = "127.0.0.1";
    const TransportRegistry registry{{PlainTransport::entry("plain", PlainTransport::Kind::kFollows)}};
    endpoint_ = engine::Endpoint::create(options_, registry).value();
    region_ = endpoint_->register_memory(memory_.data(), memory_.size(), {});
  }

  /// A raw peer that has shaken hands. What it has is imported as soon as that is known.
  RawPeer meet(bool dialled) {
    if (dialled) {
      connection_ = endpoint_->connect("127.0.0.1", listener_.port(), 20s, std::nullopt);
      remote_ = connection_->import_region(kThere);
    }
    RawPeer peer = dialled ? listener_.accept() : RawPeer::dial(endpoint_->port());
    EXPECT_TRUE(peer.shake_hands(dialled ? Role::kAcceptor : Role::kConnector, {"plain"}));
    if (!dialled) connection_ = endpoint_->connections().back();
    return peer;
  }

  Status write() {
    if (!remote_) remote_ = connection_->import_region(kThere);
    if (!remote_) return tl::unexpected(remote_.error());
    const LocalSpan from = region_->span();
    const RemoteSpan to{*remote_, kThere.address, kThere.size};
    return connection_->transfers()->start(Operation::kWrite, {&from, 1}, {&to, 1}, {})->wait(20s);
  }

  std::string detail() const { return connection_->report().routes().front().detail; }

  bool has(const std::string& channels) const {
    return eventually([&] { return detail() == channels + ": plain"; });
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(64);
  Result<MemoryRegion> region_ = fail(ErrorCode::kNotFound, "not registered");
  Result<RemoteRegionId> remote_ = fail(ErrorCode::kNotFound, "not imported");
};

// Whatever becomes of the other one.
TEST_F(FollowingTest, TheFirstServesWhileTheOtherNeverComes) {
  for (const auto kind : {PlainAddress::kNeverReady, PlainAddress::kRefused, PlainAddress::kFailsLater}) {
    SCOPED_TRACE(static_cast<unsigned>(kind));
    RawPeer peer = meet(true);
    ASSERT_TRUE(tell_of(peer, kThere));
    const auto offer = peer.next_of<wire::ChannelOffer>();
    ASSERT_TRUE(offer);
    EXPECT_EQ(offer->addresses, (std::vector<Bytes>{address(), wire::following()}));
    peer.say(wire::ChannelAnswer{"plain", "", offer->addresses});
    peer.say(kReady);
    const Status written = write();
    EXPECT_TRUE(written) << written.error().message;

    const auto reopen = peer.next_of<wire::ChannelReopen>();
    ASSERT_TRUE(reopen);
    EXPECT_EQ(reopen->channel, 65U);
    peer.say(wire::ChannelReopened{"plain", reopen->channel, "", address(kind)});
    EXPECT_TRUE(is_kept(peer));
    EXPECT_EQ(detail(), "1 of 2 channels: plain");
    EXPECT_TRUE(write());
  }
}

TEST_F(FollowingTest, TheOtherJoins) {
  for (const bool dialled : {true, false}) {
    SCOPED_TRACE(dialled ? "by who dialled" : "by who was dialled");
    remote_ = fail(ErrorCode::kNotFound, "not imported");
    RawPeer peer = meet(dialled);
    const std::vector<Bytes> addresses{address(), wire::following()};
    if (dialled) {
      ASSERT_TRUE(peer.next_of<wire::ChannelOffer>());
      peer.say(wire::ChannelAnswer{"plain", "", addresses});
    } else {
      peer.say(wire::ChannelOffer{"plain", addresses});
      const auto answer = peer.next_of<wire::ChannelAnswer>();
      ASSERT_TRUE(answer);
      EXPECT_EQ(answer->addresses, addresses);
    }
    ASSERT_TRUE(peer.next_of<wire::ChannelsReady>());
    peer.say(kReady);
    if (dialled) {
      EXPECT_TRUE(open_again(peer));
    } else {
      EXPECT_TRUE(has("1 of 2 channels"));
      peer.say(wire::ChannelReopen{"plain", 65, address()});
      EXPECT_TRUE(peer.next_of<wire::ChannelReopened>());
    }
    EXPECT_TRUE(has("2 channels")) << detail();
  }
}

// A peer that has places of another kind for them: fewer, or only for when there is much to do.
TEST_F(FollowingTest, ThePeerMayHaveNoPlaceForIt) {
  for (const auto& addresses : {std::vector<Bytes>{address()}, std::vector<Bytes>{address(), Bytes()}}) {
    RawPeer peer = meet(true);
    ASSERT_TRUE(peer.next_of<wire::ChannelOffer>());
    peer.say(wire::ChannelAnswer{"plain", "", addresses});
    peer.say(kReady);
    EXPECT_TRUE(has("1 channel")) << detail();
    EXPECT_TRUE(is_kept(peer));
  }
  RawPeer peer = meet(true);
  ASSERT_TRUE(peer.next_of<wire::ChannelOffer>());
  peer.say(wire::ChannelAnswer{"plain", "", {address(), address()}});
  const auto ready = peer.next_of<wire::ChannelsReady>();
  ASSERT_TRUE(ready);
  EXPECT_NE(ready->reason.text().find("follows"), std::string::npos) << ready->reason.text();
}

// The next use opens the first one alone, too.
TEST_F(FollowingTest, TheOtherRestsAndFollowsAgain) {
  RawPeer peer = meet(false);
  peer.say(wire::ChannelOffer{"plain", {address(), wire::following()}});
  ASSERT_TRUE(peer.next_of<wire::ChannelsReady>());
  peer.say(kReady);
  peer.say(wire::ChannelReopen{"plain", 65, address()});
  ASSERT_TRUE(has("2 channels")) << detail();
  peer.say(wire::ChannelsRest{"plain"});
  EXPECT_TRUE(eventually([&] { return detail() == "2 channels at rest, opened by the next use"; }))
      << detail();
  peer.say(wire::ChannelReopen{"plain", 64, address()});
  EXPECT_TRUE(has("1 of 2 channels")) << detail();
  peer.say(wire::ChannelReopen{"plain", 129, address()});
  EXPECT_TRUE(has("2 channels")) << detail();
}

// What is imported before is asked for while the channels come up. The peer has this side's address, so that
// the question comes before the offer.
TEST_F(FollowingTest, RegionsAreAskedForBeforeChannelsAreUp) {
  RawPeer peer = meet(true);
  ASSERT_TRUE(tell_of(peer, kThere));
  ASSERT_TRUE(peer.next_of<wire::ChannelOffer>());
  peer.say(wire::ChannelAnswer{"plain", "", {address(PlainAddress::kNeverReady), wire::following()}});
  const Status imported = connection_->wait_imported(*remote_, 20s);
  EXPECT_TRUE(imported) << imported.error().message;
  EXPECT_EQ(connection_->state(), ConnectionState::kConnecting);
}

}  // namespace
}  // namespace p2p::testing
