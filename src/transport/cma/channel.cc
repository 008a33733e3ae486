// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cma/channel.h"

#include <sys/epoll.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "base/error.h"
#include "transport/process_end.h"

namespace p2p::cma {

namespace {

// Copies are made by the caller of `post`; a deeper queue would keep a batch from the other worker.
constexpr std::size_t kMaxUnreported = 4;

// A turn looks at the ring, which costs nothing, and at the peer and its wake-ups, system calls, only so
// often: the peer's end wakes whoever sleeps until it was seen.
constexpr unsigned kTurnsALook = 64;

// Taken in one go; then others have their turn.
constexpr int kBlocksATurn = 64;

// Batches: several times what a peer's channel has slots for.
constexpr ServedCopies::Limits kServed{.batches = 64, .segments = kMaxBatchSegments, .bytes = kMaxBatchBytes};

// The system checks no keys: a range that the owner did not name must not be touched.
Status check_bounds(const Batch& batch) {
  Status status;
  batch.for_each_piece([&](const Segment& piece) {
    const RegionInfo& region = piece.key->info();
    if (!status || region.contains(piece.remote, piece.size)) return;
    status = fail(ErrorCode::kOutOfRange, "access {} bytes at {:#x} of region {}: it has {} bytes at {}",
                  piece.size, piece.remote, static_cast<std::uint32_t>(region.id), region.size,
                  static_cast<const void*>(region.base));
  });
  return status;
}

}  // namespace

CmaChannel::CmaChannel(const ChannelSetup& setup, std::shared_ptr<device::Staging> staging,
                       PeerAccess regions, const socket::Place& place)
    : setup_(setup),
      meeting_(setup_, place, peer_),
      files_(regions, rings_, peer_.socket),
      served_(std::move(regions), kServed),
      staging_(std::move(staging)) {}

Result<std::unique_ptr<Channel>> CmaChannel::open(const ChannelSetup& setup,
                                                  std::shared_ptr<device::Staging> staging,
                                                  PeerAccess regions, const socket::Place& place) {
  std::unique_ptr<CmaChannel> channel(new CmaChannel(setup, std::move(staging), std::move(regions), place));
  channel->peer_.events = UniqueFd::of(::epoll_create1, EPOLL_CLOEXEC);
  if (!channel->peer_.events) return tl::unexpected(system_error("open a cma channel: epoll_create1"));
  if (Status begun = channel->meeting_.begin(); !begun) return tl::unexpected(std::move(begun.error()));
  return channel;
}

bool CmaChannel::meet() {
  auto met = meeting_.progress();
  if (!met) {
    fail_with(std::move(met.error()));
  } else if (*met) {
    rings_ = std::move((*met)->rings);
    slots_ = std::move((*met)->slots);
    state_ = ChannelState::kReady;
  }
  return state_ != ChannelState::kConnecting;
}

bool CmaChannel::say(std::span<const std::byte> block) {
  if (!serves()) return false;
  const bool written = noted(rings_.say(block, peer_.socket));
  fail_if_lost();
  return written;
}

// False: there was no room.
bool CmaChannel::noted(Result<bool> written) {
  if (!written) breach_ = std::move(written.error());
  return written && *written;
}

bool CmaChannel::take_words() {
  for (int taken = 0; taken != kBlocksATurn; ++taken) {
    const auto read = rings_.words().read(block_);
    if (!read) breach_ = read.error();
    if (!read || !*read) return taken != 0;
    if (setup_.messages != nullptr) setup_.messages->take(block_);
  }
  return true;
}

bool CmaChannel::post(const Batch& batch) {
  if (!serves() || done_.size() >= kMaxUnreported) return false;
  bool taken = true;
  const bool within_reach = peer_.reaches || files_.maps(batch);
  if (Status inside = check_bounds(batch); !inside) {
    done_.push_back({batch.id, std::move(inside)});
  } else if (!within_reach || starts_on_device(batch)) {
    taken = post_staged(batch, within_reach);
  } else {
    done_.push_back({batch.id, copy(batch)});
  }
  fail_if_lost();
  return taken;
}

// The peer is looked at before every batch, so that a number which the system gave to a new process is never
// used.
Status CmaChannel::copy(const Batch& batch, std::byte* staged) {
  Status status;
  lost_ = lost_ || !peer_.is_alive();
  if (!lost_)
    status = peer_.reaches ? copier_.copy(peer_.pid, batch, staged) : FileExchange::copy(batch, staged);
  lost_ = lost_ || (!status && !peer_.is_alive());
  return lost_ ? tl::unexpected(peer_.gone()) : std::move(status);
}

void CmaChannel::fail_if_lost() {
  if (serves() && (lost_ || breach_)) fail_with(lost_ ? peer_.gone() : *breach_);
}

bool CmaChannel::progress(std::vector<Completion>& completions) {
  if (state_ == ChannelState::kConnecting && !closing_) return meet();
  const ChannelState before = state_;
  bool moved = false;
  if (closing_) {
    if (!peer_.is_alive()) finish();
  } else if (serves()) {
    moved = move();
  }
  moved = moved || !done_.empty() || state_ != before;
  for (Completion& completion : done_) completions.push_back(std::move(completion));
  done_.clear();
  return moved;
}

// Answers come before what waits for them, and what others wait for before what the peer wants.
bool CmaChannel::move() {
  bool moved = take_words();
  if (rings_.has_requests() && take_requests()) moved = true;
  move_staged();
  if (serve()) moved = true;
  if (done_.empty() && !moved && turns_++ % kTurnsALook == 0) lost_ = lost_ || !peer_.is_alive();
  if (lost_) take_words();  // its last ones
  fail_if_lost();
  return moved;
}

// While the peer may use slots of this side they stay, and so do the batches: one that was given back would
// else be made again, and the peer's copy of it land later. And a twin that serves already is waited for.
void CmaChannel::fail_with(Error error) {
  error_ = std::move(error);
  const bool waits = state_ == ChannelState::kConnecting ? may_be_taken_up() : awaits_owner();
  if (waits && peer_.is_alive() && peer_.stop_copying()) {
    closing_ = true;
  } else {
    finish();
  }
}

void CmaChannel::finish() {
  const bool served = state_ != ChannelState::kConnecting || closing_;
  state_ = ChannelState::kFailed;
  fail_staged(error_);
  files_.end();
  // Closed, they leave the events, which nothing more is to wake.
  meeting_.end();
  peer_.process.reset();
  if (served) peer_.hang_up();  // else with the channel, once the session tells the peer why
}

LeavesPeer::Left CmaChannel::leave() {
  const bool taken_up = may_be_taken_up();
  if (taken_up) peer_.watch_process();
  if ((!taken_up && state_ != ChannelState::kReady) || !peer_.is_alive()) return {};
  auto slots = awaits_owner() ? staging_ : nullptr;
  fail_staged(peer_.gone());
  state_ = ChannelState::kFailed;
  const bool watched = peer_.stop_copying();
  auto end = std::make_unique<ProcessEnd>(std::move(peer_.events), std::move(peer_.socket),
                                          std::move(peer_.process), std::move(slots));
  if (!watched) return {};
  return {std::move(end), {}};
}

// An acceptor is ready before its proof has come to the connector, and may be at work by then.
bool CmaChannel::may_be_taken_up() const {
  return state_ == ChannelState::kConnecting && setup_.role == Role::kConnector && peer_.socket;
}

}  // namespace p2p::cma
