// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "drivers/socket/socket.h"
#include "engine/loop/stall_timer.h"
#include "p2p/result.h"

namespace p2p::engine {

/// Whether the peer of a session is there, slow or gone. Its machine and the path to it are judged by what
/// its system acknowledges, which it does also while its programs are stopped or get no processor; the peer
/// itself by what it says and takes. To be judged once in each beat, in which something must be sent.
class Keepalive {
 public:
  using Clock = std::chrono::steady_clock;

  /// Beats within the keepalive time: five heartbeats may be lost or late before a live peer counts as slow.
  static constexpr int kBeats = 6;

  struct Limits {
    std::chrono::milliseconds machine;  ///< silent for so long it is gone; the peer is slow
    std::chrono::milliseconds peer;     ///< silent for so long it is gone, though its machine answers
  };

  Keepalive(Limits limits, Clock::time_point now);

  Clock::duration beat() const { return limits_.machine / kBeats; }

  /// The peer said something; it took something, or nothing waits for that.
  void heard(Clock::time_point now) { silence_.moved(now); }
  void taken(Clock::time_point now) { congestion_.moved(now); }

  /// Nothing was heard for the keepalive time, while this process ran.
  bool silent(Clock::time_point now) { return silence_.tick(now) >= limits_.machine; }

  /// For how long the peer has been slow, 0 if it is not; kPeerGone if it is gone.
  Result<std::chrono::milliseconds> judge(Clock::time_point now, const socket::Answers& answers);

 private:
  const Limits limits_;
  StallTimer silence_;
  StallTimer congestion_;
  bool doubted_ = false;  // at the last beat the machine seemed silent
};

}  // namespace p2p::engine
