// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/backoff.h"
#include "engine/loop/dialer.h"
#include "engine/loop/reactor.h"

namespace p2p::engine {

/// Dials a host and port, and dials them again, after a pause, when a connection came to nothing. On the
/// reactor's thread; each dial's `done` keeps the redialer alive.
class Redialer {
 public:
  using Clock = std::chrono::steady_clock;

  /// `deadline` bounds the dials that follow, and ends none that has begun.
  Redialer(Reactor& reactor, std::string host, std::uint16_t port, Clock::time_point deadline);

  /// Calls `done` once, not before it returns, unless it is stopped.
  void dial(Dialer::Done done);

  /// The same after a pause. False: it was dialled too often, or there is no time for it.
  bool dial_again(Dialer::Done done);

  void stop();

  /// What it is at, for errors: "look up gpu7", "connect to 10.0.0.7:4001".
  std::string describe() const;

  /// "gpu7:4001"
  std::string peer() const;

 private:
  Reactor& reactor_;
  const std::string host_;
  const std::uint16_t port_;
  const Clock::time_point deadline_;
  Backoff backoff_{kRedials};
  Reactor::TimerId pause_{};
  std::shared_ptr<Dialer> dialer_;  // null: nothing is dialled now
};

}  // namespace p2p::engine
