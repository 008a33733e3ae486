// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/process_id.h"
#include "engine/loop/liveness_monitor.h"
#include "engine/loop/process_watch.h"
#include "engine/loop/reactor.h"
#include "engine/session/resume_acceptor.h"
#include "engine/session/resume_attempt.h"
#include "engine/session/resume_dialer.h"
#include "transport/stream_port.h"
#include "wire/messages.h"

namespace p2p::engine {

/// How one session goes on when its connection breaks and its peer lives: both sides count the messages that
/// they have handled, keep those that the other one has not (engine::Outbox), and say how many these are on
/// another connection, which the connector dials. Only a break is mended: an end that the peer's system
/// tells, of its process or its socket, stays the end. On the reactor's thread.
class SessionResume {
 public:
  using Clock = std::chrono::steady_clock;

  struct Settings {
    Role role = Role::kConnector;
    std::array<std::byte, 32> secret{};
    bool sealed = false;
    std::string host;  ///< connector: of the peer, numeric
    std::uint16_t host_port = 0;
    std::shared_ptr<StreamPort> port;  ///< acceptor: where the peer dials again; null: it cannot
    std::optional<ProcessId> process;
    std::chrono::milliseconds keepalive{3000};
    std::chrono::milliseconds hung{30000};
  };

  struct Hooks {
    std::function<void(const wire::Message&)> say;  ///< passing: not kept, not counted
    std::function<void(ResumeAttempt::Proven)> resumed;
    std::function<void(const Error&)> gave_up;                    ///< while it is suspended
    std::function<bool(std::chrono::milliseconds)> heard_within;  ///< the peer's machine, elsewhere
  };

  /// Bytes of messages that the peer must keep until it is told that they were handled.
  static constexpr std::size_t kConfirmAfter = std::size_t{64} << 10;

  SessionResume(Reactor& reactor, Settings settings, Hooks hooks)
      : reactor_(reactor), settings_(std::move(settings)), hooks_(std::move(hooks)), process_(reactor) {}

  /// The session is open. The acceptor says that it can be gone on with.
  void begin();

  /// The peer says so. kProtocol if that was not due.
  Status take(const wire::Resumable& said);

  /// The peer said goodbye: that its process lives is no reason to wait for it.
  void peer_leaves() { peer_leaves_ = true; }

  /// Where else the acceptor is dialled; kProtocol if that was not due, or is no list of addresses.
  Status take(const wire::AlternateAddresses& said);

  /// Both have said so.
  bool possible() const { return peer_.has_value(); }
  bool dials() const { return settings_.role == Role::kConnector; }
  bool redials() const { return possible() && dials(); }

  /// A message that counts was handled.
  void count(std::size_t bytes);

  /// Tells the peer how many were; false if it knows.
  bool confirm();
  std::uint64_t handled() const { return handled_; }

  /// There is no connection any more: gets another one, or gives up. The peer's machine has been silent for
  /// `dark`.
  void suspend(Clock::duration dark);

  /// There is one again.
  void settle();

  /// Nothing more is done, and the peer is not known any more.
  void stop();

 private:
  ResumeAttempt::Terms terms() const {
    return {settings_.role, token_, settings_.secret, settings_.sealed, settings_.hung};
  }
  wire::Resumable own() const;
  void give_up(const Error& why);
  void wait_for_peer();
  bool is_heard_of(std::chrono::milliseconds within) const;

  Reactor& reactor_;
  const Settings settings_;
  const Hooks hooks_;
  wire::SessionToken token_{};
  std::optional<wire::Resumable> peer_;
  std::uint64_t handled_ = 0;
  std::uint64_t told_ = 0;  // of those, the peer knows
  std::size_t untold_bytes_ = 0;
  bool suspended_ = false;
  bool peer_leaves_ = false;
  ProcessWatch process_;
  std::optional<ResumeDialer> dialer_;
  bool has_others_ = false;  // `AlternateAddresses` has come
  std::shared_ptr<ResumeAcceptor> acceptor_;
  std::optional<LivenessMonitor> liveness_;  // acceptor, while it is suspended
  Reactor::TimerId beat_{};
};

}  // namespace p2p::engine
