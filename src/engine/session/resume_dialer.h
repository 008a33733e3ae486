// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/backoff.h"
#include "engine/loop/dialer.h"
#include "engine/loop/liveness_monitor.h"
#include "engine/loop/reactor.h"
#include "engine/session/resume_attempt.h"

namespace p2p::engine {

/// Dials a peer again, to go on with a session whose connection broke, until it answers or is gone: it is
/// when its host refuses the port, its port does not know the session, or its machine was silent for too
/// long. A machine that answers for a process that does not gets more time. Where more addresses of the peer
/// are known, all are dialled once the first is dark; only what it says itself is proof that the peer is
/// gone. On the reactor's thread; its owner stops it before it goes.
class ResumeDialer {
 public:
  using Clock = std::chrono::steady_clock;

  struct Settings {
    ResumeAttempt::Terms terms;
    std::string host;  ///< numeric
    std::uint16_t port = 0;
    std::chrono::milliseconds keepalive{3000};
    std::function<bool(std::chrono::milliseconds)> heard_within;  ///< its machine, over other connections
  };

  ResumeDialer(Reactor& reactor, Settings settings)
      : reactor_(reactor), settings_(std::move(settings)), places_{{settings_.host, settings_.port}} {}

  /// The peer can be dialled there, too: a numeric host.
  void add_place(std::string host, std::uint16_t port);

  /// The peer's machine has been silent for `dark` already. `done` is called once, not before it returns,
  /// unless it is stopped; any error says why the peer is gone.
  void start(std::uint64_t handled, Clock::duration dark, ResumeAttempt::Done done);
  void stop();

 private:
  struct Place {
    std::string host;
    std::uint16_t port = 0;
    bool is_another = false;  ///< somebody else is there; of this break alone
  };

  Clock::duration beat_time() const { return settings_.keepalive / LivenessMonitor::kBeats; }
  void dial();
  void dialled(std::size_t place, Result<UniqueFd> socket);
  void attempted(Result<ResumeAttempt::Proven> outcome);
  void dial_later();
  void beat();
  void let_go();
  void finish(Result<ResumeAttempt::Proven> outcome);

  Reactor& reactor_;
  const Settings settings_;
  ResumeAttempt::Done done_;
  std::uint64_t handled_ = 0;
  std::uint32_t attempts_ = 0;  // of the whole session
  std::vector<Place> places_;   // first the one that was last connected to
  bool dials_all_ = false;
  std::vector<std::shared_ptr<Dialer>> dialers_;  // by place; null: it is not being dialled
  std::size_t dialled_ = 0;                       // the place of `attempt_`
  std::shared_ptr<ResumeAttempt> attempt_;
  Clock::time_point dialled_at_;
  Backoff backoff_{BackoffLimits{}};
  Reactor::TimerId pause_{};
  Reactor::TimerId beat_{};
  std::optional<LivenessMonitor> liveness_;  // since the last start
};

}  // namespace p2p::engine
