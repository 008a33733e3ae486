// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>

#include "drivers/crypto/mutual_proof.h"
#include "drivers/nccl_net/comm.h"
#include "transport/nccl_net/channel_address.h"
#include "transport/nccl_net/channel_config.h"
#include "transport/nccl_net/incoming.h"
#include "transport/nccl_net/outgoing.h"
#include "transport/transport.h"

namespace p2p::nccl_net {

/// Connects the two comms of a channel, one in each direction, and proves over each that its sender knows the
/// session's secret. Part of its channel.
class CommHandshake {
 public:
  using Clock = std::chrono::steady_clock;

  /// Both outlive this. `announce` and `handler` go to the comms' two halves.
  CommHandshake(const ChannelSetup& setup, const ChannelConfig& config, Listener listener,
                Outgoing::Announce announce, IncomingHandler handler);

  ChannelAddress address() const;

  /// By when it must be over.
  Clock::time_point deadline() const { return deadline_; }

  /// The bytes came from the peer.
  Status connect(std::span<const std::byte> peer_address);

  bool started() const { return connector_.has_value(); }

  /// True if a step was made. kTimedOut; kPermissionDenied for a peer of another session.
  Result<bool> advance();

  /// Both are connected and proven: they may be taken.
  bool over() const { return proved_ && peer_proved_ && outgoing_->idle(); }
  Outgoing take_outgoing() { return std::move(*outgoing_); }
  Incoming take_incoming() { return std::move(*incoming_); }

  /// Closes what was not taken.
  void stop();

 private:
  Result<bool> connect_comms();
  Status open_outgoing(SendComm comm);
  Status open_incoming(RecvComm comm);
  crypto::MutualProof proof(const Handle& receiver) const;
  Result<bool> check_peer();

  const ChannelSetup& setup_;
  const ChannelConfig& config_;
  const Outgoing::Announce announce_;
  const IncomingHandler handler_;
  const Clock::time_point deadline_;
  Listener listener_;
  ChannelAddress peer_;
  std::optional<Connector> connector_;
  std::optional<Outgoing> outgoing_;
  std::optional<Incoming> incoming_;
  bool proved_ = false;
  bool peer_proved_ = false;
};

}  // namespace p2p::nccl_net
