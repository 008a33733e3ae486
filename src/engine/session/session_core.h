// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "engine/loop/reactor.h"
#include "engine/loop/redialer.h"
#include "engine/session/control_socket.h"
#include "engine/session/keepalive.h"
#include "engine/session/outbox.h"
#include "engine/session/session.h"
#include "engine/session/session_resume.h"
#include "engine/session/socket_handshake.h"
#include "wire/decode.h"

namespace p2p::engine {

/// What a Session does. Kept alive by the session and, until it has closed, by the reactor. All on the
/// reactor's thread but `enqueue` and `request_close`.
class Session::Core : public std::enable_shared_from_this<Core> {
 public:
  using Clock = std::chrono::steady_clock;

  Core(Reactor& reactor, SessionConfig config, Handlers handlers, Clock::time_point deadline);

  void dial(std::string host, std::uint16_t port);
  void adopt(UniqueFd socket);

  void enqueue(const wire::Message& message);
  void request_close(Error reason) { outbox_.close(std::move(reason)); }
  void finish(Error reason);
  void hand_over(Handlers handlers) { handlers_ = std::move(handlers); }

 private:
  /// kBroken: there is no socket, and may be one again.
  enum class State { kDialing, kHandshake, kOpen, kBroken, kClosing, kLingering, kClosed };

  void start_deadline();
  void dialled(Result<UniqueFd> socket);
  bool dial_again();
  void shake_hands(UniqueFd socket, Role role);
  void go_on(SocketHandshake::Outcome outcome);
  void seal();
  void on_events(std::uint32_t events);
  void receive();
  void take_end();
  void take_messages(Clock::time_point until);
  void take_turn(Clock::time_point until);
  void read_on_later();
  void read_on();
  bool pause_above_mark();
  void refuse(const Error& error);
  void open();
  void flush();
  void update_interest();
  void begin_close(Error reason);
  void linger();

  void start_keepalive();
  void tick();
  bool heard_elsewhere(std::chrono::milliseconds within) const;
  void tell_slow(std::chrono::milliseconds still);

  void take_outbox();
  Error explain(Error error) const;

  // session_resume.cc
  void start_resumption(const SessionPeer& peer);
  void deliver(wire::Message message, std::size_t bytes);
  Status take_of_resumption(const wire::Message& message);
  void lost(Error cause, Clock::duration dark = {});
  void let_go_of_socket();
  void resume(ResumeAttempt::Proven proven);
  bool is_dark(const socket::Answers& answers);

  Reactor& reactor_;
  SessionConfig config_;
  Handlers handlers_;
  Clock::time_point deadline_;
  std::string peer_name_;
  State state_ = State::kDialing;
  std::optional<Redialer> redialer_;  // of a session that dials
  std::unique_ptr<ControlSocket> socket_;
  std::optional<SocketHandshake> handshake_;
  wire::FrameReader reader_{wire::kStrangerFrameBytes};
  std::uint32_t interest_ = 0;
  bool peer_finished_ = false;
  bool reads_on_ = false;        // posted: messages that were read wait for their next turn
  bool hurried_ = false;         // the connection is at its end: what was read is handled in one turn
  bool paused_ = false;          // nothing is read until the peer has taken its answers
  std::optional<Error> broken_;  // a write failed; what can still be read comes first
  std::optional<Error> reason_;  // of a close under way
  Reactor::TimerId timer_{};     // the handshake's deadline, then keepalive, then the close's limit
  bool slow_ = false;            // the peer is, and the handler was told
  std::optional<Keepalive> keepalive_;
  std::optional<SessionResume> resumption_;  // since it is open
  std::optional<Error> loss_;                // of the socket, while there is none
  Clock::time_point lost_at_;
  int dark_beats_ = 0;

  Outbox outbox_{[this] { reactor_.post([self = shared_from_this()] { self->take_outbox(); }); }};
};

}  // namespace p2p::engine
