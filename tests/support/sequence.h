// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/underlying.h"
#include "engine/endpoint.h"
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
      : endpoint_(endpoint), choices_(choices) {}
  /// Waits until nothing reaches the memory, which is this object's: a receive may just be filled.
  ~Sequence() {
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    for (const auto& region : regions_) {
      if (region->revoke(deadline) && region->wait_unused(deadline)) continue;
      std::fputs("sequence: a region is still in use after the connection's end\n", stderr);
      std::abort();
    }
  }
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  /// Shakes hands in one of the two roles and plays until the choices are used up or the endpoint closes.
  /// False if the handshake failed, which it must not.
  bool run() {
    RawListener listener;
    const bool dialled = choose(2) == 0;
    if (dialled) connection_ = endpoint_.connect("127.0.0.1", listener.port(), kTimeout, std::nullopt);
    RawPeer peer = dialled ? listener.accept() : RawPeer::dial(endpoint_.port());
    if (!peer.shake_hands(dialled ? Role::kAcceptor : Role::kConnector, {"plain", "tcp"})) return false;
    while (at_ < choices_.size()) {
      const unsigned what = choose(32);
      if (what >= kActs) {
        act(what);
      } else if (what >= kWords ? !say_word(peer, word(what)) : !peer.say(message(what))) {
        break;
      }
      while (peer.next(std::chrono::milliseconds(0))) {
      }
    }
    if (connection_) connection_->abort({ErrorCode::kCancelled, "the run is over"});
    return true;
  }

 private:
  static constexpr std::chrono::seconds kTimeout{20};

  // The choices from which on it is a word, and something that an application does.
  static constexpr unsigned kWords = 15;
  static constexpr unsigned kActs = 28;

  unsigned choose(unsigned among) { return at_ < choices_.size() ? choices_[at_++] % among : 0; }
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
        if (choose(2) == 0) return wire::ChannelReopen{name(), channel, address};
        return wire::ChannelReopened{name(), channel, reason(), address};
      }
      case 13: return choose(4) == 3 ? wire::Message(wire::Hello{}) : wire::Message(wire::Heartbeat{});
      default: break;
    }
    if (choose(4) != 3) return wire::RegionRevoke{small(), region};
    return wire::Bye{"the raw peer has enough"};
  }

  // Mostly as it should, or outside of words, or in a block that starts or acknowledges somewhere else.
  bool say_word(RawPeer& peer, const wire::Message& word) {
    switch (choose(32)) {
      case 31: return peer.say(word);
      case 30: return peer.say_words(small(), small(), wire::encode(word));
      default: return peer.say_word(word);
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

  // What an application does meanwhile.
  void act(unsigned what) {
    if (!connection_) {
      const auto all = endpoint_.connections();
      if (all.empty()) return;
      connection_ = all.back();
    }
    if (what == kActs || remotes_.empty()) {
      RegionDescriptor descriptor{.address = 4096, .size = 64, .place = {}, .region = RegionId{choose(4)}};
      descriptor.incarnation = RawPeer::kIncarnation;
      if (const auto id = connection_->import_region(descriptor)) remotes_.push_back(*id);
      return;
    }
    if (!registered_)
      regions_.push_back(endpoint_.context().regions->add(memory_.data(), memory_.size(), {}).value());
    registered_ = true;
    const auto& region = regions_.back();
    const std::vector<LocalSpan> local{{region->info().id, memory_.data(), choose(9)}};
    const std::vector<RemoteSpan> remote{{remotes_.at(choose(256) % remotes_.size()), 4096, local[0].size}};
    switch (choose(6)) {
      case 0:
        pending_.push_back(connection_->transfers()->start(Operation::kWrite, local, remote, {}));
        break;
      case 1: pending_.push_back(connection_->send(local)); break;
      case 2: pending_.push_back(connection_->receive(local)); break;
      case 3: pending_.push_back(connection_->notify("from the application")); break;
      case 4:
        if (!pending_.empty()) pending_.at(choose(256) % pending_.size())->cancel();
        break;
      default:
        // The raw peer, whose word it may need, has its turn after this one.
        static_cast<void>(region->revoke(std::chrono::steady_clock::now()));
        registered_ = false;
    }
  }

  engine::Endpoint& endpoint_;
  const std::span<const std::uint8_t> choices_;
  std::size_t at_ = 0;
  std::uint64_t next_receive_ = 0;
  std::uint64_t next_eager_ = 0;
  RegionKey key_{};
  std::shared_ptr<engine::Connection> connection_;
  std::array<std::byte, 64> memory_{};
  std::vector<std::shared_ptr<engine::Region>> regions_;  ///< also those that were revoked in part
  bool registered_ = false;                               ///< the last of them serves
  std::vector<RemoteRegionId> remotes_;
  std::vector<std::shared_ptr<engine::TransferState>> pending_;
};

}  // namespace p2p::testing
