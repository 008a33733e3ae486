// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "drivers/socket/socket.h"
#include "engine/loop/stall_timer.h"
#include "p2p/result.h"

namespace p2p::engine {

/// Decides whether a session's peer is there. Its machine and the path to it are judged by what its system
/// acknowledges, which it does also while its programs are stopped or get no processor; the peer itself by
/// what it says and takes. To be judged once in each beat, in which something must be sent; time in which
/// this process itself stood still counts for little. One thread.
class LivenessMonitor {
 public:
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;

  /// Beats within the keepalive time: five heartbeats may be lost or late before a live peer counts as slow.
  static constexpr int kBeats = 6;

  enum class State {
    kAlive,
    kSlow,  ///< its machine answers, and the peer has not for the keepalive time
    kDark,  ///< its machine owes an answer for so long that another connection is worth a try
    kGone
  };

  /// What the state rests on.
  enum class Sign {
    kMachine,    ///< its machine is silent
    kSilence,    ///< the peer says nothing
    kCongestion  ///< the peer takes nothing
  };

  struct Verdict {
    State state = State::kAlive;
    Sign sign = Sign::kMachine;
    Milliseconds still{};  ///< for how long
  };

  struct Limits {
    Clock::duration beat;
    Clock::duration machine;  ///< silent for so long it is gone; the peer is slow
    Clock::duration peer =
        Clock::duration::max();  ///< silent for so long it is gone, though its machine answers

    /// Whether the peer's machine was heard of within this time over another connection. May be null.
    std::function<bool(Milliseconds)> heard_elsewhere = nullptr;
  };

  LivenessMonitor(Limits limits, Clock::time_point now);

  Clock::duration beat() const { return limits_.beat; }

  /// The peer said something; it took something, or nothing waits for that.
  void heard(Clock::time_point now) { silence_.moved(now); }
  void taken(Clock::time_point now) { congestion_.moved(now); }

  /// Nothing was heard for the keepalive time, while this process ran.
  bool silent(Clock::time_point now) { return silence_.tick(now) >= limits_.machine; }

  /// Over a connection, of whose acknowledgements the system says `answers`. kDark only where it would be
  /// dialled anew (`redials`).
  Verdict judge(Clock::time_point now, const socket::Answers& answers, bool redials);

  /// While nothing connects the two.
  Verdict judge(Clock::time_point now);

  /// The same, for an attempt to connect them. True: it should be made anew, for a packet that was lost goes
  /// again at ever longer intervals.
  bool is_path_dark(Clock::time_point now, const socket::Answers& answers);

 private:
  bool heard_elsewhere(Clock::duration within) const;
  bool is_dark(const socket::Answers& answers, bool redials);

  const Limits limits_;
  StallTimer machine_;  // while nothing connects the two
  StallTimer silence_;
  StallTimer congestion_;
  bool doubted_ = false;  // at the last beat the machine seemed silent
  int dark_beats_ = 0;
};

/// Why a peer that is connected counts as gone, for its session's end.
Error gone(const LivenessMonitor::Verdict& verdict);

}  // namespace p2p::engine
