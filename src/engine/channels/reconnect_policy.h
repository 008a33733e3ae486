// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>

namespace p2p::engine {

/// When a channel that was lost is tried again, and how long an attempt may take. While other channels serve,
/// pauses grow, and it is tried without end. When no other is left, work waits for the attempts, which have
/// to be over in time: then neither a pause nor an attempt that hangs may use up most of that time, whatever
/// was before. Only what the peer takes part in counts, since a peer that does not is slow.
class ReconnectPolicy {
 public:
  using Clock = std::chrono::steady_clock;

  /// `patience`: how long they may take together while no other channel is left.
  explicit ReconnectPolicy(std::chrono::milliseconds patience) : patience_(patience) {}

  /// The channel was lost, or an attempt has failed. When the next one is due.
  Clock::time_point fail(Clock::time_point now);

  /// The peer has answered, and both connect. By when the channel must be up.
  Clock::time_point begin(Clock::time_point now);

  void succeed(Clock::time_point now);

  /// No other is left. When what was due at `due` is due from now on.
  Clock::time_point press(Clock::time_point now, Clock::time_point due);

  /// Another one is up.
  void relax() { pressed_ = false; }

  /// It was tried for long enough, and no other is left.
  bool exhausted() const { return pressed_ && spent_ >= patience_; }

 private:
  Clock::duration longest() const;

  const Clock::duration patience_;
  bool pressed_ = false;
  unsigned failures_ = 0;  // since one stayed
  Clock::duration spent_{0};
  std::optional<Clock::time_point> begun_at_;
  std::optional<Clock::time_point> up_at_;
};

}  // namespace p2p::engine
