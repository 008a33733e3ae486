// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "transport/registry.h"
#include "transport/transport.h"

namespace p2p::testing {

/// What the one byte of a plain channel's address makes of the channel that connects to it.
enum class PlainAddress : std::uint8_t { kGood, kRefused, kFailsLater, kNeverReady, kLosesAll, kHoldsAll };

/// A channel without anything behind it: every batch is done at once, whatever lies at the other end. One
/// that holds all is done with none, as on a long path.
class PlainChannel : public Channel {
 public:
  std::vector<std::byte> address() const override { return {std::byte{0}}; }

  Status connect(std::span<const std::byte> peer_address) override {
    if (peer_address.size() != 1) return fail(ErrorCode::kProtocol, "connect: not a plain address");
    peer_ = static_cast<PlainAddress>(peer_address[0]);
    if (peer_ == PlainAddress::kRefused) return fail(ErrorCode::kUnavailable, "connect: refused");
    return {};
  }

  ChannelState state() const override { return state_; }
  Error error() const override { return {ErrorCode::kPeerGone, "the plain channel was lost"}; }

  bool post(const Batch& batch) override {
    if (peer_ == PlainAddress::kHoldsAll) return true;
    const bool lost = peer_ == PlainAddress::kLosesAll;
    done_.push_back({batch.id, lost ? Status(tl::unexpected(error())) : Status()});
    if (lost) state_ = ChannelState::kFailed;
    return true;
  }

  bool progress(std::vector<Completion>& completions) override {
    const bool moved = !done_.empty() || state_ == ChannelState::kConnecting;
    const bool comes_up = peer_ != PlainAddress::kNeverReady && peer_ != PlainAddress::kFailsLater;
    if (comes_up && state_ == ChannelState::kConnecting) state_ = ChannelState::kReady;
    if (peer_ == PlainAddress::kFailsLater) state_ = ChannelState::kFailed;
    for (Completion& completion : done_) completions.push_back(std::move(completion));
    done_.clear();
    return moved;
  }

  void abandon(BatchId) override {}
  int ready_fd() const override { return -1; }
  bool busy() const override { return !done_.empty(); }
  PathUse path_use() const override {
    return {.round_trip = std::chrono::milliseconds(peer_ == PlainAddress::kHoldsAll ? 5 : 0)};
  }

  Status on_control(std::span<const std::byte> message) override {
    if (!message.empty() && message[0] == std::byte{0xff}) return fail(ErrorCode::kProtocol, "told to fail");
    return {};
  }

  std::string describe() const override { return "plain"; }

 private:
  PlainAddress peer_ = PlainAddress::kNeverReady;
  ChannelState state_ = ChannelState::kConnecting;
  std::vector<Completion> done_;
};

/// Two channels to whoever speaks the session's protocol, for tests in which the peer is made by hand.
class PlainTransport : public Transport {
 public:
  /// What its channels can: rest, be opened one after the other, or become three while there is much to do.
  enum class Kind : std::uint8_t { kStays, kRests, kFollows, kGrows };

  explicit PlainTransport(std::string name, Kind kind = Kind::kRests) : name_(std::move(name)), kind_(kind) {}

  std::string_view name() const override { return name_; }
  Capabilities capabilities() const override {
    return {.needs_exported_key = true,
            .reopens = true,
            .closes_idle = kind_ != Kind::kStays,
            .others_follow = kind_ == Kind::kFollows};
  }
  Status probe() const override { return {}; }
  bool carries(MemoryPlace, MemoryPlace) const override { return true; }
  std::vector<Rail> rails(const PeerPath&) const override { return {{.name = "plain", .address = {}}}; }
  unsigned channels_per_rail(const Rail&) const override { return 2; }
  unsigned spare_channels(const Rail&) const override { return kind_ == Kind::kGrows ? 1 : 0; }
  Result<std::shared_ptr<Registration>> register_memory(const RegionInfo& region) override {
    return std::make_shared<Registration>(region);
  }
  void revoke_memory(const Registration& registration) override { registration.revoke(); }
  Result<std::unique_ptr<RemoteKey>> import_region(const RegionInfo& region,
                                                   std::span<const std::byte>) override {
    return std::make_unique<RemoteKey>(region);
  }
  Result<std::unique_ptr<Channel>> open_channel(const ChannelSetup&) override {
    return std::make_unique<PlainChannel>();
  }

  static TransportRegistry::Entry entry(const std::string& name, Kind kind = Kind::kRests) {
    return {name, [=](const Options&, const auto&) { return std::make_unique<PlainTransport>(name, kind); }};
  }

 private:
  const std::string name_;
  const Kind kind_;
};

}  // namespace p2p::testing
