// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Spare channels, between an endpoint that was dialled and a raw peer.
#include <gtest/gtest.h>

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
  }

  /// One with two channels that are up and a spare one.
  RawPeer meet() {
    RawPeer peer = RawPeer::dial(endpoint_->port());
    EXPECT_TRUE(peer.shake_hands(Role::kConnector, {"plain"}));
    peer.say(wire::ChannelOffer{"plain", {address(), address(), {}}});
    peer.say(kReady);
    connection_ = endpoint_->connections().back();
    EXPECT_TRUE(has("2 channels"));
    return peer;
  }

  /// Whatever is said of the raw peer, which answers no question in the meantime.
  bool has(const std::string& channels) const {
    return eventually([&] { return connection_->routes().front().detail.ends_with(channels + ": plain"); });
  }
};

// Else it would take the place for one that comes up, and ask for no more.
TEST_F(GrowthTest, OneThatTheConnectorHasGivenUpIsSpareAgain) {
  RawPeer peer = meet();
  peer.say(wire::ChannelReopen{"plain", 66, address(PlainAddress::kNeverReady)});
  EXPECT_TRUE(has("2 of 3 channels"));
  EXPECT_TRUE(has("2 channels"));
  peer.say(wire::ChannelReopen{"plain", 130, address()});
  EXPECT_TRUE(has("3 channels"));
}

}  // namespace
}  // namespace p2p::testing
