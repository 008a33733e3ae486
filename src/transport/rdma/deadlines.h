// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

#include "drivers/socket/poll_set.h"

namespace p2p::rdma {

/// When a channel must look at the clock although nothing came. Keeps the alarm of its poll set.
class Deadlines {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::time_point kNever = Clock::time_point::max();

  /// The poll set outlives it.
  explicit Deadlines(socket::PollSet& polls) : polls_(polls) {}

  /// The channel waits for its peer, until then; nothing is probed meanwhile.
  void wait_until(Clock::time_point end) { set(end, kNever, port_); }

  /// The channel waits for nothing; whether the peer is there is asked then.
  void probe_at(Clock::time_point at) { set(kNever, at, port_); }

  /// The port must be up again by then.
  void set_port(Clock::time_point end) {
    if (end != port_) set(wait_, probe_, end);
  }

  void clear() { set(kNever, kNever, kNever); }

  bool waited(Clock::time_point now) const { return now >= wait_; }
  bool port_is_down(Clock::time_point now) const { return now >= port_; }
  bool probes(Clock::time_point now) const { return now >= probe_; }

 private:
  void set(Clock::time_point wait, Clock::time_point probe, Clock::time_point port) {
    wait_ = wait;
    probe_ = probe;
    port_ = port;
    const Clock::time_point next = std::min({wait_, probe_, port_});
    if (next == kNever) {
      polls_.clear_alarm();
    } else {
      polls_.set_alarm(next);
    }
  }

  socket::PollSet& polls_;
  Clock::time_point wait_ = kNever;
  Clock::time_point probe_ = kNever;
  Clock::time_point port_ = kNever;
};

}  // namespace p2p::rdma
