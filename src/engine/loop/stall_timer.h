// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace p2p::engine {

/// Measures for how long something that ought to move has not, while this process ran: time in which it was
/// stopped itself (SIGSTOP, a debugger) counts for little, so that whoever wakes up blames nobody for it.
class StallTimer {
 public:
  using Clock = std::chrono::steady_clock;

  /// Between two `tick`s no more than `most` is counted.
  StallTimer(Clock::time_point now, Clock::duration most) : last_move_(now), last_tick_(now), most_(most) {}

  void moved(Clock::time_point now) {
    last_move_ = now;
    moved_ = true;
  }

  /// The time without a move.
  Clock::duration tick(Clock::time_point now) {
    if (moved_) {
      still_ = std::min(now - last_move_, most_);
    } else {
      still_ += std::min(now - last_tick_, most_);
    }
    moved_ = false;
    last_tick_ = now;
    return still_;
  }

 private:
  Clock::time_point last_move_;
  Clock::time_point last_tick_;
  Clock::duration most_;
  Clock::duration still_{};
  bool moved_ = false;
};

}  // namespace p2p::engine
