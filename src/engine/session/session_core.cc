// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/session_core.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "wire/encode.h"

namespace p2p::engine {

Session::Core::Core(Reactor& reactor, SessionConfig config, Handlers handlers, Clock::time_point deadline)
    : reactor_(reactor),
      config_(std::move(config)),
      handlers_(std::move(handlers)),
      states_({.handshake = deadline,
               .suspended = config_.hung + config_.keepalive,
               .draining = config_.keepalive,
               .lingering = config_.keepalive / LivenessMonitor::kBeats}),
      deadline_(deadline) {}

void Session::Core::start_limit() {
  reactor_.cancel(timer_);
  const auto limit = states_.limit();
  if (!limit) return;
  timer_ = reactor_.after(*limit - Clock::now(), [self = shared_from_this()] { self->expire(); });
}

void Session::Core::expire() {
  if (!states_.is(SessionState::kConnecting)) return finish(Error(states_.why()));
  const std::string at =
      handshake_ ? fmt::format("wait for {}", handshake_->awaits()) : redialer_->describe();
  finish(explain(Error{ErrorCode::kTimedOut, at + ": the deadline passed first"}));
}

void Session::Core::dial(std::string host, std::uint16_t port) {
  if (states_.is(SessionState::kEnded)) return;
  redialer_.emplace(reactor_, std::move(host), port, deadline_);
  peer_name_ = redialer_->peer();
  start_limit();
  redialer_->dial([self = shared_from_this()](Result<UniqueFd> socket) { self->dialled(std::move(socket)); });
}

void Session::Core::dialled(Result<UniqueFd> socket) {
  if (!socket) return finish(explain(socket.error()));
  shake_hands(std::move(*socket), Role::kConnector);
}

/// Closed in the handshake, and without a reason: the peer may have been too busy with others.
bool Session::Core::dial_again() {
  const bool unexplained =
      states_.is(SessionState::kConnecting) && handshake_ && connection_.reader().buffered() == 0;
  if (!unexplained || !redialer_ || outbox_.closing()) return false;
  const auto done = [self = shared_from_this()](Result<UniqueFd> socket) {
    self->dialled(std::move(socket));
  };
  if (!redialer_->dial_again(done)) return false;
  handshake_.reset();
  connection_.let_go(false);
  return true;
}

void Session::Core::adopt(UniqueFd socket) {
  if (states_.is(SessionState::kEnded)) return;
  shake_hands(std::move(socket), Role::kAcceptor);
  if (!states_.is(SessionState::kConnecting)) return;
  start_limit();
  connection_.receive();  // who dials speaks first, and mostly has by now
}

void Session::Core::shake_hands(UniqueFd fd, Role role) {
  connection_.take(std::make_unique<ControlSocket>(std::move(fd)),
                   wire::FrameReader(wire::kStrangerFrameBytes));
  ControlSocket& socket = connection_.socket();
  if (peer_name_.empty()) peer_name_ = socket.peer();
  auto handshake = SocketHandshake::start(config_, role, socket, connection_.reader());
  if (!handshake) return finish(explain(handshake.error()));
  handshake_.emplace(std::move(*handshake));
  Status ready = socket.prepare(config_.hung);
  if (ready) ready = connection_.watch();
  if (!ready) return finish(explain(ready.error()));
  connection_.flush();
}

bool Session::Core::takes_messages() const {
  return states_.is(SessionState::kConnecting) || (is_live() && !outbox_.closing());
}

void Session::Core::on_heard() {
  if (liveness_) liveness_->heard(Clock::now());
  if (!states_.is(SessionState::kConnecting) || !handshake_->sealing()) return;
  // TLS has taken what came.
  if (handlers_.answered && connection_.socket().tls_answered()) std::exchange(handlers_.answered, nullptr)();
  go_on(handshake_->look_at_tls());
}

void Session::Core::on_taken() {
  if (liveness_) liveness_->taken(Clock::now());
}

void Session::Core::on_paused() {
  if (handlers_.paused) handlers_.paused();
}

void Session::Core::on_idle() {
  if (is_live()) outbox_.pass_to(connection_.socket());
  if (states_.is(SessionState::kDraining) && !connection_.finished_sending()) linger();
}

void Session::Core::on_end() {
  if (outbox_.closing()) take_outbox();
  if (!connection_.is_open()) return;
  if (connection_.finished_sending()) return finish(Error(states_.why()));
  if (states_.is(SessionState::kDraining)) return;
  if (const auto& broken = connection_.broken()) return lost(explain(*broken));
  const std::string when =
      handshake_ ? fmt::format(" during the handshake, before {}", handshake_->awaits()) : "";
  Error end = explain(Error{ErrorCode::kPeerGone, "the peer closed the connection" + when});
  // A reset of which another thread was told, when it sent.
  if (connection_.socket().broke()) return lost(std::move(end));
  finish(std::move(end));
}

void Session::Core::go_on(SocketHandshake::Outcome outcome) {
  // Or the peer would take itself for let in, and not dial again.
  if (outbox_.closing()) return take_outbox();
  connection_.reader().set_max_frame_bytes(handshake_->max_frame_bytes());
  if (outcome.error && !outcome.told) return finish(explain(*outcome.error));
  if (outcome.error) return drain(SessionEvent::kRefused, explain(*outcome.error));
  if (outcome.done) return open();
  connection_.flush();
}

/// What TLS has to say to the peer leaves first.
void Session::Core::on_refused(const Error& error) {
  if (error.code == ErrorCode::kPeerGone) return lost(explain(error));
  const bool says_more = states_.next(SessionEvent::kRefused) == SessionState::kDraining &&
                         !states_.is(SessionState::kDraining) && !connection_.socket().idle();
  if (says_more) return drain(SessionEvent::kRefused, explain(error));
  finish(explain(error));
}

void Session::Core::open() {
  states_.on(SessionEvent::kOpened, Clock::now());
  connection_.reader().set_max_frame_bytes(wire::kMaxFrameBytes);
  start_keepalive();
  const SessionPeer peer = handshake_->peer();
  handshake_.reset();
  start_resumption(peer);
  // It may put others in the place of all handlers.
  if (const auto opened = std::exchange(handlers_.opened, nullptr)) opened(peer);
  take_outbox();
  if (is_live()) connection_.flush();
}

void Session::Core::start_keepalive() {
  liveness_.emplace(LivenessMonitor::Limits{.beat = config_.keepalive / LivenessMonitor::kBeats,
                                            .machine = config_.keepalive,
                                            .peer = config_.hung,
                                            .heard_elsewhere =
                                                [this](std::chrono::milliseconds within) {
                                                  return handlers_.heard_within &&
                                                         handlers_.heard_within(within);
                                                }},
                    Clock::now());
  reactor_.cancel(timer_);
  timer_ = reactor_.after(liveness_->beat(), [self = shared_from_this()] { self->tick(); });
}

/// Judges, says that this side lives, and comes again.
void Session::Core::tick() {
  using State = LivenessMonitor::State;
  // It is this side that does not listen.
  if (connection_.read_again()) liveness_->heard(Clock::now());
  if (liveness_->silent(Clock::now())) {
    // What came while this thread was kept from running is life too.
    connection_.receive();
    if (!is_live()) return;
  }
  ControlSocket& socket = connection_.socket();
  if (socket.idle()) liveness_->taken(Clock::now());
  const auto verdict = liveness_->judge(Clock::now(), socket.unacknowledged(), resumption_->redials());
  if (verdict.state == State::kDark) return lost(explain(gone(verdict)), verdict.still);
  if (verdict.state == State::kGone) return finish(explain(gone(verdict)));
  tell_slow(verdict.still);
  const bool confirmed = resumption_->confirm();
  // With frames waiting, those tell the peer as much as a heartbeat behind them would.
  if (socket.idle() && !confirmed) outbox_.put(wire::encode(wire::Heartbeat{}), true);
  timer_ = reactor_.after(liveness_->beat(), [self = shared_from_this()] { self->tick(); });
}

void Session::Core::tell_slow(std::chrono::milliseconds still) {
  const bool slow = still.count() != 0;
  if (!slow && !slow_) return;
  if (slow != std::exchange(slow_, slow)) {
    if (slow) {
      log(LogLevel::kWarning, "session with {}: the peer is slow: its machine answers, it did not for {} ms",
          peer_name_, still.count());
    } else {
      log(LogLevel::kInfo, "session with {}: the peer answers again", peer_name_);
    }
  }
  if (handlers_.slow) handlers_.slow(still);
}

void Session::Core::enqueue(const wire::Message& message) {
  Bytes frame = wire::encode(message);
  if (frame.size() > wire::kMaxFrameBytes) {
    return outbox_.close(Error{ErrorCode::kMessageTooLong,
                               fmt::format("send a {} of {} bytes: frames have at most {}",
                                           wire::name(message), frame.size(), wire::kMaxFrameBytes)});
  }
  outbox_.put(std::move(frame));
}

void Session::Core::take_outbox() {
  if (states_.is(SessionState::kEnded)) return;
  auto [frames, request] = outbox_.take(is_live());
  for (auto& frame : frames) connection_.socket().push(std::move(frame));
  if (request) {
    // Who gives the peer up does not wait for it; last messages do.
    const bool abandons = request->code == ErrorCode::kPeerGone;
    return drain(abandons ? SessionEvent::kAbandoned : SessionEvent::kClosed, std::move(*request));
  }
  if (is_live() && (!frames.empty() || !connection_.socket().idle())) connection_.flush();
}

/// This side closes: at once, or when what waits has left.
void Session::Core::drain(SessionEvent event, Error reason) {
  const SessionState next = states_.next(event);
  if (next == SessionState::kEnded) return finish(std::move(reason), event);
  if (next != SessionState::kDraining || !states_.on(event, Clock::now(), std::move(reason))) return;
  if (resumption_) resumption_->stop();
  start_limit();
  connection_.flush();
}

/// Everything is on its way. Closing now, with bytes of the peer unread, would make the system drop it; so
/// the peer gets a moment to close first.
void Session::Core::linger() {
  if (connection_.peer_finished()) return finish(Error(states_.why()));
  states_.on(SessionEvent::kAllSent, Clock::now());
  start_limit();
  connection_.finish_sending();
}

void Session::Core::finish(Error reason, SessionEvent event) {
  if (states_.is(SessionState::kEnded)) return;
  if (reason.code == ErrorCode::kPeerGone && dial_again()) return;
  const auto self = shared_from_this();
  if (auto request = outbox_.shut()) reason = std::move(*request);
  states_.on(event, Clock::now(), std::move(reason));
  reactor_.cancel(timer_);
  if (redialer_) redialer_->stop();
  if (resumption_) resumption_->stop();
  connection_.let_go(false);
  const Handlers handlers = std::exchange(handlers_, {});
  if (handlers.closed) handlers.closed(states_.why());
}

Error Session::Core::explain(const Error& error) const {
  return {error.code, fmt::format("session with {}: {}", peer_name_, error.message)};
}

}  // namespace p2p::engine
