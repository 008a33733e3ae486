// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/endpoint.h"
#include "support/application.h"
#include "support/choices.h"
#include "support/plain_transport.h"
#include "support/raw_listener.h"
#include "support/raw_peer.h"

namespace p2p::testing {

/// Turns bytes into a run of messages of a raw peer, well shaped but in any order, mixed with what an
/// application does on the other side. Each byte chooses, so that a fuzzer finds its way; 0 for ever at the
/// end.
class Sequence {
 public:
  Sequence(engine::Endpoint& endpoint, std::span<const std::uint8_t> choices)
      : endpoint_(endpoint), choices_(choices), application_(endpoint, choices_) {}

  /// Shakes hands in one of the two roles and plays until the choices are used up or the endpoint closes.
  /// False if the handshake failed, which it must not.
  bool run() {
    RawListener listener;
    const bool dialled = choose(2) == 0;
    if (dialled) application_.dial(listener.port());
    RawPeer peer = dialled ? listener.accept() : RawPeer::dial(endpoint_.port());
    if (!peer.shake_hands(dialled ? Role::kAcceptor : Role::kConnector, {"plain", "tcp"})) return false;
    while (choices_.left()) {
      const unsigned what = choose(32);
      if (what >= kActs) {
        application_.act(what == kActs);
      } else if (what >= kMessages ? !say_message(peer, word(what)) : !peer.say(message(what))) {
        break;
      }
      while (peer.next(std::chrono::milliseconds(0))) {
      }
    }
    application_.end();
    return true;
  }

 private:
  // The choices from which on it is a word, and something that an application does.
  static constexpr unsigned kMessages = 15;
  static constexpr unsigned kActs = 28;

  unsigned choose(unsigned among) { return choices_.choose(among); }
  std::string name() { return std::array<const char*, 4>{"plain", "plain", "tcp", "none"}.at(choose(4)); }
  std::uint64_t small() { return choose(8) == 7 ? ~std::uint64_t{0} : choose(4); }
  std::string reason() { return choose(4) == 3 ? "why not" : ""; }

  std::vector<Bytes> addresses() {
    std::vector<Bytes> addresses(choose(4));
    for (Bytes& address : addresses) {
      // A whole address of `tcp` names its port, which nobody listens at, and a token.
      const bool plain = choose(4) != 0;
      address.resize(plain ? 1 : choose(64));
      for (std::byte& byte : address) byte = static_cast<std::byte>(choose(plain ? 4 : 256));
    }
    return addresses;
  }

  RegionKey key() {
    RegionKey key = key_;
    key[0] = static_cast<std::byte>(choose(2));
    return key;
  }

  wire::Message message(unsigned what) {
    const auto region = static_cast<std::uint32_t>(small());
    switch (what) {
      case 0: return wire::ChannelOffer{name(), addresses()};
      case 1:
      case 2: return wire::ChannelAnswer{name(), reason(), addresses()};
      case 3:
      case 4: return wire::ChannelsReady{name(), reason()};
      case 5:
      case 6:
        return wire::ChannelControl{name(), region, Bytes(choose(3), static_cast<std::byte>(choose(256)))};
      case 7: return wire::RegionQuery{small(), region, key()};
      case 8:
      case 9:
        return wire::RegionAnswer{small(), static_cast<std::uint16_t>(choose(4)), "said", small(),
                                  small(), {{name(), Bytes(choose(4))}}};
      case 10: return wire::RegionRevoke{small(), region};
      case 11: return wire::RegionRevoked{small()};
      case 12: {
        const auto channel = static_cast<std::uint32_t>(choose(3) + 64 * choose(3));
        const Bytes address(1, static_cast<std::byte>(choose(4)));
        switch (choose(8)) {
          case 7: return wire::ChannelsRest{name()};
          case 6: return wire::ChannelsWanted{name()};
          case 5:
          case 4:
          case 3: return wire::ChannelReopen{name(), channel, address};
          default: break;
        }
        return wire::ChannelReopened{name(), channel, reason(), address};
      }
      case 13:
        switch (choose(10)) {
          case 9: return wire::DigestQuery{small(), {{region, key()}}, {{0, 1, small()}}, {small()}};
          case 8: return wire::DigestAnswer{small(), 0, "said", small()};
          case 7: return wire::Hello{};
          case 6: return wire::Resumable{};
          case 5: return wire::CumulativeAck{small()};
          case 4: return wire::Resumed{{}, small()};
          case 3: return wire::AlternateAddresses{{{"192.0.2.1", static_cast<std::uint16_t>(choose(3))}}};
          default: return wire::Heartbeat{};
        }
      default: break;
    }
    if (choose(4) != 3) return wire::RegionRevoke{small(), region};
    return wire::Bye{"the raw peer has enough"};
  }

  // Mostly as it should, or outside of words, or in a block that starts or acknowledges somewhere else.
  bool say_message(RawPeer& peer, const wire::Message& word) {
    switch (choose(32)) {
      case 31: return peer.say(word);
      case 30: return peer.say_words(small(), small(), wire::encode(word));
      default: return peer.say_message(word);
    }
  }

  wire::Message word(unsigned what) {
    const auto region = static_cast<std::uint32_t>(small());
    switch (what) {
      case 15:
      case 16:
        return wire::ReceivePosted{
            next_receive_++ + choose(8) / 7,
            static_cast<std::uint8_t>(choose(8) / 7),
            {{region, key(), static_cast<std::uint8_t>(choose(3)), 0, small(), small()}}};
      case 17: return wire::ReceiveDone{small(), small(), static_cast<std::uint16_t>(choose(3)), "said"};
      case 18: return wire::ReceiveWithdrawn{small()};
      case 19: {
        const std::uint64_t size = choose(8);
        return wire::Notify{small(), size, choose(8) == 7 ? 1U : 0U, Bytes(size)};
      }
      case 20: return wire::NotifyDone{small()};
      case 21:
      case 22: {
        const std::uint32_t size = choose(8);
        const bool spans = choose(4) == 3;
        return wire::EagerMessage{next_eager_++ - choose(16) / 15, static_cast<std::uint16_t>(choose(8) / 7),
                                  spans ? std::vector<std::uint32_t>{size} : std::vector<std::uint32_t>{},
                                  Bytes(size)};
      }
      case 23: return wire::MessageAnswered{small(), static_cast<std::uint16_t>(choose(3)), "said"};
      case 24: return wire::MessageDeclined{small()};
      case 25: return wire::ReceiveWanted{small()};
      case 26: return wire::MessageWithdrawn{small()};
      default: return wire::SendsEnded{"said"};
    }
  }

  engine::Endpoint& endpoint_;
  Choices choices_;
  Application application_;
  std::uint64_t next_receive_ = 0;
  std::uint64_t next_eager_ = 0;
  RegionKey key_{};
};

}  // namespace p2p::testing
