// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/loopback/channel.h"

#include <sys/eventfd.h>

#include <utility>

#include "base/error.h"
#include "base/safe_copy.h"

namespace p2p::loopback {

namespace {

// Copies are made by the caller of `post`, so a deeper queue would only delay the news of them.
constexpr std::size_t kMaxUnreported = 16;

}  // namespace

LoopbackChannel::LoopbackChannel(const ChannelSetup& setup, std::shared_ptr<Port> port)
    : setup_(setup), port_(std::move(port)) {}

LoopbackChannel::~LoopbackChannel() { port_->close(); }

std::vector<std::byte> LoopbackChannel::address() const {
  return {port_->name().begin(), port_->name().end()};
}

Status LoopbackChannel::connect(std::span<const std::byte> peer_address) {
  auto peer = Port::find(peer_address, setup_);
  if (!peer) return tl::unexpected(peer.error());
  if (!(*peer)->attach(port_)) {
    return fail(ErrorCode::kPeerGone, "connect over loopback: the peer's channel is closed or taken");
  }
  peer_ = *std::move(peer);
  state_ = ChannelState::kReady;
  return {};
}

bool LoopbackChannel::post(const Batch& batch) {
  if (state_ != ChannelState::kReady || done_.size() >= kMaxUnreported) return false;
  Status status;
  if (peer_->closed()) status = fail(ErrorCode::kPeerGone, "copy over loopback: the peer closed its channel");
  batch.for_each_piece([&](const Segment& piece) {
    if (status) status = copy(batch.operation, piece);
  });
  done_.push_back({batch.id, std::move(status)});
  return true;
}

Status LoopbackChannel::copy(Operation operation, const Segment& piece) const {
  const RegionInfo& named = piece.key->info();
  const auto region = peer_->regions().find(operation, named.id, named.key, piece.remote, piece.size);
  if (!region) return tl::unexpected(region.error());
  const AccessGuard access(**region);
  if (!access) {
    return fail(ErrorCode::kNotFound, "access {} bytes at {:#x} of region {}: it was deregistered",
                piece.size, piece.remote, static_cast<std::uint32_t>(named.id));
  }
  auto* const remote = reinterpret_cast<std::byte*>(piece.remote);
  const bool write = operation == Operation::kWrite;
  std::byte* const target = write ? remote : piece.local;
  std::byte* const source = write ? piece.local : remote;
  if (copy_across(target, source, piece.size)) return {};
  const iovec from{source, piece.size};
  return tl::unexpected(readable({&from, 1}) ? bad_memory("write to", target, piece.size)
                                             : bad_memory("read", source, piece.size));
}

bool LoopbackChannel::progress(std::vector<Completion>& completions) {
  bool moved = !done_.empty();
  for (Completion& completion : done_) completions.push_back(std::move(completion));
  done_.clear();
  if (state_ == ChannelState::kReady && peer_->closed()) {
    eventfd_t closed = 0;
    ::eventfd_read(port_->wake_fd(), &closed);
    state_ = ChannelState::kFailed;
    error_ = {ErrorCode::kPeerGone, "the peer closed its loopback channel"};
    moved = true;
  }
  return moved;
}

}  // namespace p2p::loopback
