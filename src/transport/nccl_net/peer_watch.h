// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "drivers/socket/poll_set.h"
#include "p2p/result.h"

namespace p2p::nccl_net {

/// Whether the peer's channel lives and whether bytes move: a plugin may say "not yet" for ever, so channels
/// ping each other over the control link. It is who receives that notices a comm which has gone dark: a
/// message was announced to him, the other side lives, and it does not come. Also when the next look for
/// bytes is worth its while. Uses the poll set's alarm. Part of its channel.
class PeerWatch {
 public:
  using Clock = std::chrono::steady_clock;

  PeerWatch(socket::PollSet& polls, std::chrono::milliseconds keepalive, std::chrono::milliseconds hung)
      : polls_(polls), keepalive_(keepalive), hung_(hung) {}

  void start(Clock::time_point now) { heard_at_ = moved_at_ = next_check_ = checked_at_ = now; }

  /// The peer's channel said something.
  void heard(Clock::time_point now) {
    heard_at_ = now;
    paused_until_ = {};
  }

  /// Bytes have moved, or are to.
  void moved(Clock::time_point now) { moved_at_ = now; }

  /// So many messages have come over the comm by now.
  void arrived(std::uint64_t messages, Clock::time_point now) {
    if (std::exchange(arrived_, messages) != messages) arrived_at_ = now;
  }

  /// The last one came within this time. That a message was sent says nothing of the peer, and what its
  /// channel says comes over the session.
  bool heard_within(std::chrono::milliseconds time) const {
    return arrived_ != 0 && Clock::now() - arrived_at_ <= time;
  }

  /// There is a batch to look after.
  void posted() {
    paused_until_ = {};
    moved_at_ = Clock::now();
  }

  /// Nothing is expected yet.
  bool paused(Clock::time_point now) const { return now < paused_until_; }

  /// Something is under way and did not move just now. True if it most likely will soon: a pause begins.
  bool pause(Clock::time_point now);

  /// A few times in each keepalive time, also when nothing is under way.
  bool due(Clock::time_point now) const { return now >= next_check_; }

  /// What is under way.
  struct Load {
    bool busy = false;
    std::uint64_t awaited = 0;  ///< bytes of the message that is to come next; 0: none is, or it may be late
  };

  /// kPeerGone if nothing was heard until the peer counts as hung, what is awaited does not come, or nothing
  /// moved for very long. To be called when due.
  Status check(Clock::time_point now, const Load& load);

 private:
  Status check_awaited(Clock::time_point now, std::uint64_t bytes);

  socket::PollSet& polls_;
  const std::chrono::milliseconds keepalive_;
  const std::chrono::milliseconds hung_;
  Clock::time_point heard_at_;
  Clock::time_point moved_at_;
  Clock::time_point next_check_;
  Clock::time_point paused_until_;
  std::uint64_t arrived_ = 0;
  Clock::time_point arrived_at_;
  Clock::time_point checked_at_;
  std::optional<std::uint64_t> awaited_;  // the message that was awaited at that time
  Clock::duration still_{0};              // for so long, while both sides lived
};

}  // namespace p2p::nccl_net
