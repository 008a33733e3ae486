// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include "drivers/socket/round_trip.h"

namespace p2p::tcp {

/// Whether what a stream has to send stands still: from look to look the other host's kernel has acknowledged
/// nothing of what was under way, or less than an eighth of the rate before. A peer that does not take its
/// bytes does not make it stand still. By the caller's clock.
class StallMeter {
 public:
  using Clock = std::chrono::steady_clock;

  /// Between two looks, while bytes are to be sent. The congestion control may send next to nothing for 0.2 s
  /// (bbr looks for the least round trip), which is less than what it takes to be stalled.
  static constexpr std::chrono::milliseconds kLook{75};

  void look(Clock::time_point now, const socket::Traffic& traffic);

  /// Nothing is to be sent.
  void rest();

  /// So long; 0: it moves, or has nothing to send.
  std::chrono::milliseconds stalled_for(Clock::time_point now) const;

 private:
  Clock::time_point looked_at_{};  // zero: not since the rest
  socket::Traffic before_;         // at that time
  double usual_ = 0;               // rate, bytes a second; 0: not known
  Clock::time_point since_{};      // zero: it moves
};

}  // namespace p2p::tcp
