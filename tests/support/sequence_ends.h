// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/bounds.h"
#include "support/eventually.h"
#include "support/sequence.h"

/// An endpoint and a raw peer, for tests of what the peer may say when.
namespace p2p::testing {

using namespace std::chrono_literals;

inline Bytes address(PlainAddress kind = PlainAddress::kGood) { return {static_cast<std::byte>(kind)}; }
inline const wire::ChannelOffer kOffer{"plain", {address(), address()}};
inline const wire::ChannelAnswer kAnswer{"plain", "", {address(), address()}};
inline const wire::ChannelsReady kReady{"plain", ""};
inline const wire::ChannelsReady kGivenUp{"plain", "no more"};

/// How far the channels of the one transport are when a message comes.
enum Stage : unsigned {
  kIntroduced = 1,  ///< the endpoint's offer was not answered; or none was made to it
  kConnected = 2,   ///< answered; the endpoint's channels come up, the raw peer has not said so of its own
  kOpen = 4,
  kLost = 8,  ///< the raw peer gave the transport up after it was connected
  kAlways = kIntroduced | kConnected | kOpen | kLost,
  kNever = 0,
};

class SequenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.listen_address = "127.0.0.1";
    make_endpoint();
  }

  void make_endpoint(bool rests = true) {
    const auto kind = rests ? PlainTransport::Kind::kRests : PlainTransport::Kind::kStays;
    TransportRegistry registry{{PlainTransport::entry("plain", kind), PlainTransport::entry("spare")}};
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

  /// Memory of the raw peer, and the answer to the endpoint's question for it: that the transports reach it
  /// whose keys they are. False if it was not asked.
  static constexpr RegionDescriptor memory_there(std::size_t bytes) {
    return {.address = 0x10000,
            .size = bytes,
            .place = {},
            .region = RegionId{7},
            .key = {},
            .incarnation = RawPeer::kIncarnation};
  }
  static bool tell_of(RawPeer& peer, const RegionDescriptor& there,
                      std::vector<wire::ExportedKey> keys = {{"plain", Bytes(1)}}) {
    const auto query = peer.next_of<wire::RegionQuery>();
    if (!query) return false;
    peer.say(wire::RegionAnswer{.query = query->query,
                                .error = 0,
                                .message = "",
                                .base = there.address,
                                .size = there.size,
                                .keys = std::move(keys)});
    return true;
  }

  /// Both channels of "plain". Those of "spare" are told of in the same words.
  bool both_serve() const {
    const Route route = connection_->report().routes().front();
    return route.transport == "plain" && route.detail == "2 channels: plain";
  }

  /// Takes part in the endpoint's attempts to open channels of "plain" again until both serve; the last one's
  /// number. On a busy machine an attempt may be over before it is answered.
  std::optional<std::uint32_t> open_again(RawPeer& peer) const {
    std::optional<std::uint32_t> last;
    const bool serve = eventually([&] {
      if (const auto again = peer.next_of<wire::ChannelReopen>(1ms); again && again->transport == "plain") {
        last = again->channel;
        peer.say(wire::ChannelReopened{"plain", again->channel, "", address()});
      }
      return both_serve();
    });
    return serve ? last : std::nullopt;
  }

  /// What comes after the message is still answered.
  static bool is_kept(RawPeer& peer) {
    peer.say(wire::RegionQuery{4242, 4711, {}});
    while (const auto answer = peer.next_of<wire::RegionAnswer>()) {
      if (answer->query == 4242) return true;
    }
    return false;
  }

  Options options_;
  std::unique_ptr<engine::Endpoint> endpoint_;
  std::shared_ptr<engine::Connection> connection_;
  RawListener listener_;
};

}  // namespace p2p::testing
