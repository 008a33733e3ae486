// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Spare channels, between an endpoint and a raw peer.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/sequence_ends.h"

namespace p2p::testing {
namespace {

class GrowthTest : public SequenceTest {
 protected:
  void SetUp() override {
    options_.listen_address = "127.0.0.1";
    const TransportRegistry registry{{PlainTransport::entry("plain", PlainTransport::Kind::kGrows)}};
    endpoint_ = engine::Endpoint::create(options_, registry).value();
    region_ = endpoint_->register_memory(memory_.data(), memory_.size(), {});
  }

  /// One with two channels that are up and a spare one.
  RawPeer meet(bool dialled, PlainAddress kind = PlainAddress::kGood) {
    if (dialled) connection_ = endpoint_->connect("127.0.0.1", listener_.port(), 20s, std::nullopt);
    RawPeer peer = dialled ? listener_.accept() : RawPeer::dial(endpoint_->port());
    EXPECT_TRUE(peer.shake_hands(dialled ? Role::kAcceptor : Role::kConnector, {"plain"}));
    if (!dialled) connection_ = endpoint_->connections().back();
    const std::vector<Bytes> addresses{address(kind), address(kind), {}};
    if (dialled) {
      EXPECT_TRUE(peer.next_of<wire::ChannelOffer>());
      peer.say(wire::ChannelAnswer{"plain", "", addresses});
    } else {
      peer.say(wire::ChannelOffer{"plain", addresses});
    }
    peer.say(kReady);
    EXPECT_TRUE(has("2 channels"));
    return peer;
  }

  /// Much to do, of which nothing gets done.
  std::shared_ptr<engine::TransferState> write(RawPeer& peer) {
    const RegionDescriptor there = memory_there(memory_.size());
    const auto id = connection_->import_region(there);
    if (!region_ || !id || !tell_of(peer, there)) return nullptr;
    const LocalSpan from = region_->span();
    const RemoteSpan to{*id, there.address, there.size};
    return connection_->transfers()->start(Operation::kWrite, {&from, 1}, {&to, 1}, {});
  }

  /// Whatever is said of the raw peer, which answers no question in the meantime.
  bool has(const std::string& channels) const {
    return eventually(
        [&] { return connection_->report().routes().front().detail.ends_with(channels + ": plain"); });
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(1 << 20);
  Result<MemoryRegion> region_ = fail(ErrorCode::kNotFound, "not registered");
};

// Its dial may never have reached this side, which has the work and asks for it once more.
TEST_F(GrowthTest, OneThatTheConnectorHasGivenUpIsAskedForAgain) {
  RawPeer peer = meet(false, PlainAddress::kHoldsAll);
  ASSERT_TRUE(write(peer));
  ASSERT_TRUE(peer.next_of<wire::ChannelsWanted>());
  peer.say(wire::ChannelReopen{"plain", 66, address(PlainAddress::kNeverReady)});
  EXPECT_TRUE(has("2 of 3 channels"));
  EXPECT_TRUE(has("2 channels"));
  EXPECT_TRUE(peer.next_of<wire::ChannelsWanted>());
  peer.say(wire::ChannelReopen{"plain", 130, address()});
  EXPECT_TRUE(has("3 channels"));
}

// After the 10 s for which it opens no more.
TEST_F(GrowthTest, OneThatDidNotComeUpIsTriedAgain) {
  RawPeer peer = meet(true, PlainAddress::kHoldsAll);
  ASSERT_TRUE(write(peer));
  for (const std::uint32_t channel : {66U, 130U}) {
    const auto reopen = peer.next_of<wire::ChannelReopen>();
    ASSERT_TRUE(reopen);
    EXPECT_EQ(reopen->channel, channel);
    peer.say(wire::ChannelReopened{"plain", channel, "", address(PlainAddress::kNeverReady)});
  }
}

}  // namespace
}  // namespace p2p::testing
