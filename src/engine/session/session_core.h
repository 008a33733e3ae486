// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "engine/loop/liveness_monitor.h"
#include "engine/loop/reactor.h"
#include "engine/loop/redialer.h"
#include "engine/session/control_connection.h"
#include "engine/session/outbox.h"
#include "engine/session/session.h"
#include "engine/session/session_resume.h"
#include "engine/session/session_states.h"
#include "engine/session/socket_handshake.h"

namespace p2p::engine {

/// What a Session does. Kept alive by the session and, until it has closed, by the reactor. All on the
/// reactor's thread but `enqueue` and `request_close`.
class Session::Core : public std::enable_shared_from_this<Core>, private ControlConnection::Owner {
 public:
  using Clock = std::chrono::steady_clock;

  Core(Reactor& reactor, SessionConfig config, Handlers handlers, Clock::time_point deadline);

  void dial(std::string host, std::uint16_t port);
  void adopt(UniqueFd socket);

  void enqueue(const wire::Message& message);
  void request_close(Error reason) { outbox_.close(std::move(reason)); }
  void finish(Error reason, SessionEvent event = SessionEvent::kFailed);
  void hand_over(Handlers handlers) { handlers_ = std::move(handlers); }

 private:
  bool is_live() const override { return states_.is(SessionState::kLive); }
  bool takes_messages() const override;
  std::shared_ptr<void> hold() override { return shared_from_this(); }
  void on_heard() override;
  void on_taken() override;
  void on_message(wire::Message message, std::size_t bytes) override;
  void on_turn_end() override { take_outbox(); }
  void on_idle() override;
  void on_paused() override;
  void on_end() override;
  void on_breach(const Error& error) override { finish(explain(error)); }
  void on_refused(const Error& error) override;
  void on_broken(const Error& error) override { lost(explain(error)); }

  void dialled(Result<UniqueFd> socket);
  bool dial_again();
  void shake_hands(UniqueFd socket, Role role);
  void go_on(SocketHandshake::Outcome outcome);
  void open();

  void start_limit();
  void expire();
  void start_keepalive();
  void tick();
  void tell_slow(std::chrono::milliseconds still);

  void take_outbox();
  void drain(SessionEvent event, Error reason);
  void linger();
  Error explain(const Error& error) const;

  // session_core_resume.cc
  void start_resumption(const SessionPeer& peer);
  Status take_of_resumption(const wire::Message& message);
  void lost(Error cause, Clock::duration dark = {});
  void resume(ResumeAttempt::Proven proven);
  Status move_to(ResumeAttempt::Proven proven);

  Reactor& reactor_;
  SessionConfig config_;
  Handlers handlers_;
  SessionStates states_;
  const Clock::time_point deadline_;  // of the handshake
  std::string peer_name_;
  std::optional<Redialer> redialer_;  // of a session that dials
  std::optional<SocketHandshake> handshake_;
  std::optional<LivenessMonitor> liveness_;
  std::optional<SessionResume> resumption_;  // since it is open
  Reactor::TimerId timer_{};                 // the state's limit; while it is live, the next beat
  bool slow_ = false;                        // the peer is, and the handler was told

  Outbox outbox_{[this] { reactor_.post([self = shared_from_this()] { self->take_outbox(); }); }};
  ControlConnection connection_{reactor_, outbox_, *this};
};

}  // namespace p2p::engine
