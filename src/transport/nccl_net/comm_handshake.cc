// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/comm_handshake.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace p2p::nccl_net {

CommHandshake::CommHandshake(const ChannelSetup& setup, const ChannelConfig& config, Listener listener,
                             Outgoing::Announce announce, IncomingHandler handler)
    : setup_(setup),
      config_(config),
      announce_(std::move(announce)),
      handler_(std::move(handler)),
      deadline_(Clock::now() + config.connect_timeout),
      listener_(std::move(listener)) {}

ChannelAddress CommHandshake::address() const {
  return {listener_.handle(), config_.flow.chunk_bytes, config_.device.properties.name};
}

Status CommHandshake::connect(std::span<const std::byte> peer_address) {
  auto address = ChannelAddress::decode(peer_address);
  Status good;
  if (!address) good = tl::unexpected(address.error());
  if (good) good = check_handle(address->handle, listener_.handle(), config_.plugin->name());
  if (!good) {
    return fail(good.error().code, "connect {}: {}", config_.device.label(), good.error().message);
  }
  peer_ = std::move(*address);
  connector_.emplace(config_.plugin, device_towards(config_.devices, config_.device, peer_.nic),
                     peer_.handle);
  return {};
}

/// Each direction's first message; only those in the session can make it.
crypto::MutualProof CommHandshake::proof(const Handle& receiver) const {
  crypto::MutualProof proof("p2p nccl_net channel", setup_.secret);
  proof.bind(receiver);
  return proof;
}

Status CommHandshake::open_outgoing(SendComm comm) {
  Flow flow = config_.flow;
  flow.chunk_bytes = std::min(flow.chunk_bytes, peer_.chunk_bytes);
  auto opened = Outgoing::open(std::move(comm), flow, announce_);
  if (!opened) return tl::unexpected(opened.error());
  outgoing_.emplace(std::move(*opened));
  return {};
}

Status CommHandshake::open_incoming(RecvComm comm) {
  auto opened = Incoming::open(std::move(comm), config_.flow, config_.unpacker, handler_);
  if (!opened) return tl::unexpected(opened.error());
  incoming_.emplace(std::move(*opened));
  return {};
}

Result<bool> CommHandshake::connect_comms() {
  bool moved = false;
  if (!outgoing_) {
    auto comm = connector_->poll();
    if (!comm) return tl::unexpected(comm.error());
    if (*comm) {
      if (auto opened = open_outgoing(std::move(**comm)); !opened) return tl::unexpected(opened.error());
      moved = true;
    }
  }
  if (!incoming_) {
    auto comm = listener_.poll();
    if (!comm) return tl::unexpected(comm.error());
    if (*comm) {
      if (auto opened = open_incoming(std::move(**comm)); !opened) return tl::unexpected(opened.error());
      moved = true;
    }
  }
  return moved;
}

/// True once the peer has proven itself.
Result<bool> CommHandshake::check_peer() {
  const auto theirs = incoming_->poll_proof();
  if (!theirs) return tl::unexpected(theirs.error());
  if (!*theirs) return false;
  if (!proof(listener_.handle()).holds(opposite(setup_.role), **theirs)) {
    return fail(ErrorCode::kPermissionDenied, "connect: the other side does not know the session's secret");
  }
  return true;
}

Result<bool> CommHandshake::advance() {
  if (Clock::now() >= deadline_) {
    return fail(ErrorCode::kTimedOut, "connect: not ready after {} ms", config_.connect_timeout.count());
  }
  if (!connector_) return false;
  auto moved = connect_comms();
  if (!moved) return moved;
  if (outgoing_ && !proved_) {
    const auto sent = outgoing_->send_proof(proof(peer_.handle).by(setup_.role));
    if (!sent) return tl::unexpected(sent.error());
    proved_ = *sent;
  }
  if (outgoing_) {
    if (auto sent = outgoing_->progress(); !sent) return sent;
  }
  if (incoming_ && !peer_proved_) {
    const auto proven = check_peer();
    if (!proven) return proven;
    peer_proved_ = *proven;
    moved = *moved || *proven;
  }
  return moved;
}

void CommHandshake::stop() {
  outgoing_.reset();
  incoming_.reset();
  connector_.reset();
}

}  // namespace p2p::nccl_net
