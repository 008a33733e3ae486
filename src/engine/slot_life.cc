// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A slot's life, and messages to its channel from others.
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/slot.h"

namespace p2p::engine {

Bytes Slot::address() {
  MutexLock lock(mutex_);
  return channel_ ? channel_->address() : Bytes();
}

Status Slot::connect(ByteView peer_address) {
  MutexLock lock(mutex_);
  if (!channel_) return fail(ErrorCode::kPeerGone, "connect a channel: it was given up");
  return channel_->connect(peer_address);
}

void Slot::start() {
  thread_.post([self = shared_from_this()](Deferred& deferred) {
    self->assume_locked();
    if (!self->channel_) return;  // stopped before it came here
    const int fd = self->channel_->ready_fd();
    if (const Status added = self->thread_.add(self, fd); !added) return self->drop(added.error(), deferred);
    self->fd_ = fd;
    self->activate();
  });
}

void Slot::stop(const Error& error) {
  Deferred deferred;
  {
    MutexLock lock(mutex_);
    if (!stopped_) drop(error, deferred);
  }
  deferred.run();
}

bool Slot::give_up(const Error& error) {
  Deferred deferred;
  {
    MutexLock lock(mutex_);
    if (ready_ && !stopped_) return false;
    if (!stopped_) drop(error, deferred);
  }
  deferred.run();
  return true;
}

void Slot::drop(const Error& error, Deferred& deferred) {
  stopped_ = true;
  const auto self = shared_from_this();
  thread_.remove(*this, std::exchange(fd_, -1));
  LeavesPeer::Left left;
  if (auto* const leaver = dynamic_cast<LeavesPeer*>(channel_.get()); leaver != nullptr && fence_) {
    left = leaver->leave();
  }
  channel_.reset();
  flying_.for_each([&](const Piece& piece) {
    if (auto* const trace = piece.trace()) trace->piece_ended(way_, piece.batch.id, tl::unexpected(error));
  });
  if (left.end) {
    std::vector<Piece> held;
    for (const BatchId id : left.held) {
      if (auto piece = flying_.remove(id)) held.push_back(std::move(*piece));
    }
    fence_->add(std::move(left.end), std::move(held), error);
  }
  flying_.for_each([&](Piece& piece) { piece.fail(error, deferred); });
  flying_.clear();
  pace_.clear();
  source_->remove(*this);
  report(tl::unexpected(error), deferred);
}

std::optional<Slot::Clock::time_point> Slot::quiet_since() {
  MutexLock lock(mutex_);
  const bool quiet = ready_ && !stopped_ && assists_ == 0 && !busy() && flying_.empty() && channel_->quiet();
  return quiet ? std::optional(moved_at_) : std::nullopt;
}

std::chrono::microseconds Slot::round_trip() {
  MutexLock lock(mutex_);
  return ready_ && !stopped_ ? channel_->round_trip() : std::chrono::microseconds(0);
}

bool Slot::heard_within(std::chrono::milliseconds time) {
  MutexLock lock(mutex_);
  return ready_ && !stopped_ && channel_->heard_within(time);
}

void Slot::mute() {
  MutexLock lock(mutex_);
  report_ = nullptr;
}

void Slot::control(Bytes message) {
  thread_.post([self = shared_from_this(), message = std::move(message)](Deferred& deferred) {
    self->assume_locked();
    if (!self->channel_) return;
    if (const Status taken = self->channel_->on_control(message); !taken) {
      return self->drop(taken.error(), deferred);
    }
    self->activate();
  });
}

void Slot::abandon(std::shared_ptr<TransferState> state) {
  thread_.post([self = shared_from_this(), state = std::move(state)](Deferred& /*deferred*/) {
    self->assume_locked();
    if (!self->channel_) return;
    Channel& channel = *self->channel_;
    self->flying_.for_each([&](const Piece& piece) {
      if (piece.submission->state() == state) channel.abandon(piece.batch.id);
    });
    self->activate();
  });
}

}  // namespace p2p::engine
