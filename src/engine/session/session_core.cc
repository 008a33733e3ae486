// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/session_core.h"

#include <sys/epoll.h>

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "wire/encode.h"

namespace p2p::engine {
namespace {

/// Buffers read for one event, so that one busy peer leaves others their turn.
constexpr int kReadsPerEvent = 16;

/// How long messages are taken before timers and other sessions get their turn.
constexpr std::chrono::milliseconds kTurn{2};

/// Bytes of answers that wait to leave before the session reads no more, and how few they must be before it
/// reads on. Honest peers keep far below: neither side asks for more than it can take.
constexpr std::size_t kHighMark = std::size_t{8} << 20;
constexpr std::size_t kLowMark = std::size_t{1} << 20;

}  // namespace

Session::Core::Core(Reactor& reactor, SessionConfig config, Handlers handlers, Clock::time_point deadline)
    : reactor_(reactor), config_(std::move(config)), handlers_(std::move(handlers)), deadline_(deadline) {}

void Session::Core::start_deadline() {
  timer_ = reactor_.after(deadline_ - Clock::now(), [self = shared_from_this()] {
    const std::string at = self->handshake_ ? fmt::format("wait for {}", self->handshake_->awaits())
                                            : self->redialer_->describe();
    self->finish(self->explain(Error{ErrorCode::kTimedOut, at + ": the deadline passed first"}));
  });
}

void Session::Core::dial(std::string host, std::uint16_t port) {
  if (state_ == State::kClosed) return;
  redialer_.emplace(reactor_, std::move(host), port, deadline_);
  peer_name_ = redialer_->peer();
  start_deadline();
  redialer_->dial([self = shared_from_this()](Result<UniqueFd> socket) { self->dialled(std::move(socket)); });
}

void Session::Core::dialled(Result<UniqueFd> socket) {
  if (!socket) return finish(explain(std::move(socket).error()));
  shake_hands(std::move(*socket), Role::kConnector);
}

/// Closed in the handshake, and without a reason: the peer may have been too busy with others.
bool Session::Core::dial_again() {
  const bool unexplained = state_ == State::kHandshake && reader_.buffered() == 0;
  if (!unexplained || !redialer_ || outbox_.closing()) return false;
  const auto done = [self = shared_from_this()](Result<UniqueFd> socket) {
    self->dialled(std::move(socket));
  };
  if (!redialer_->dial_again(done)) return false;
  reactor_.unwatch(socket_->fd());
  handshake_.reset();
  socket_.reset();
  broken_.reset();
  peer_finished_ = hurried_ = false;
  interest_ = 0;
  state_ = State::kDialing;
  return true;
}

void Session::Core::adopt(UniqueFd socket) {
  if (state_ == State::kClosed) return;
  shake_hands(std::move(socket), Role::kAcceptor);
  if (state_ != State::kHandshake) return;
  start_deadline();
  receive();  // who dials speaks first, and mostly has by now
}

void Session::Core::shake_hands(UniqueFd socket, Role role) {
  state_ = State::kHandshake;
  socket_ = std::make_unique<ControlSocket>(std::move(socket));
  if (peer_name_.empty()) peer_name_ = socket_->peer();
  auto handshake = SocketHandshake::start(config_, role, *socket_, reader_);
  if (!handshake) return finish(explain(std::move(handshake).error()));
  handshake_.emplace(std::move(*handshake));
  Status ready = socket_->prepare(config_.hung);
  if (ready) {
    interest_ = EPOLLIN | EPOLLRDHUP;
    ready = reactor_.watch(socket_->fd(), interest_,
                           [self = shared_from_this()](std::uint32_t events) { self->on_events(events); });
  }
  if (!ready) return finish(explain(std::move(ready).error()));
  flush();
}

void Session::Core::on_events(std::uint32_t events) {
  if ((events & EPOLLOUT) != 0) flush();
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) paused_ = false;  // nothing leaves any more
  // What the peer said before its end is read first, whatever else the event tells.
  if (socket_ && (events & ~std::uint32_t{EPOLLOUT}) != 0) receive();
}

void Session::Core::receive() {
  const auto until = Clock::now() + kTurn;
  for (int reads = 0; reads < kReadsPerEvent && socket_ && !reads_on_ && !paused_; ++reads) {
    const auto got = socket_->receive(reader_);
    if (!got) return refuse(got.error());
    if (got->bytes == 0 && !got->end) return;
    if (keepalive_) keepalive_->heard(Clock::now());
    if (state_ == State::kHandshake && handshake_->sealing()) seal();
    if (!socket_) return;
    if (got->end) return take_end();
    take_messages(until);
  }
}

void Session::Core::take_end() {
  peer_finished_ = true;
  if (outbox_.closing()) take_outbox();
  if (state_ == State::kLingering) return finish(*reason_);
  if (state_ == State::kClosing) return update_interest();
  if (broken_) return lost(*broken_);
  const std::string when = state_ == State::kHandshake
                               ? fmt::format(" during the handshake, before {}", handshake_->awaits())
                               : "";
  Error end = explain(Error{ErrorCode::kPeerGone, "the peer closed the connection" + when});
  // A reset of which another thread was told, when it sent.
  if (socket_ && socket_->broke()) return lost(std::move(end));
  finish(std::move(end));
}

void Session::Core::take_messages(Clock::time_point until) {
  outbox_.pass_no_more();
  if (state_ == State::kOpen) outbox_.begin_turn();
  take_turn(until);
  outbox_.end_turn();
  if (state_ == State::kClosed) return;
  take_outbox();
  if (state_ == State::kOpen) flush();
  pause_above_mark();
}

/// Messages, until none is left, the turn is over or the peer does not take its answers.
void Session::Core::take_turn(Clock::time_point until) {
  while (state_ == State::kHandshake || (state_ == State::kOpen && !outbox_.closing())) {
    if (state_ == State::kHandshake) reader_.set_max_frame_bytes(handshake_->max_frame_bytes());
    const std::size_t buffered = reader_.buffered();
    auto message = reader_.next();
    if (!message) return finish(explain(std::move(message).error()));
    if (!*message) return;
    if (state_ == State::kHandshake) {
      go_on(handshake_->take(std::move(**message)));
    } else {
      deliver(std::move(**message), buffered - reader_.buffered());
    }
    if (state_ != State::kOpen || hurried_) continue;
    if (keepalive_) keepalive_->heard(Clock::now());
    if (outbox_.has_much()) {
      for (auto& frame : outbox_.take(true).frames) socket_->push(std::move(frame));
      flush();
      if (pause_above_mark()) return;
    }
    if (Clock::now() >= until) return read_on_later();
  }
  // Closed or closing: what still comes is of no use to anyone.
  reader_ = wire::FrameReader();
}

void Session::Core::read_on_later() {
  if (std::exchange(reads_on_, true)) return;
  reactor_.post([self = shared_from_this()] { self->read_on(); });
}

void Session::Core::read_on() {
  reads_on_ = false;
  if (state_ == State::kClosed || paused_) return;
  take_messages(Clock::now() + kTurn);
  if (state_ != State::kClosed) receive();
}

/// Stops reading if the peer leaves too many of its answers. Looked at when much has been gathered and after
/// each turn: on a slow machine a turn is over before it has gathered much.
bool Session::Core::pause_above_mark() {
  if (state_ != State::kOpen || hurried_ || socket_->answers() < kHighMark) return false;
  paused_ = true;
  log(LogLevel::kDebug, "session with {}: {} bytes of answers wait to leave; nothing is read until they have",
      peer_name_, socket_->answers());
  if (handlers_.paused) handlers_.paused();
  update_interest();
  return true;
}

void Session::Core::go_on(SocketHandshake::Outcome outcome) {
  // Or the peer would take itself for let in, and not dial again.
  if (outbox_.closing()) return take_outbox();
  if (outcome.error && !outcome.told) return finish(explain(std::move(*outcome.error)));
  if (outcome.error) return begin_close(explain(std::move(*outcome.error)));
  if (outcome.done) return open();
  flush();
}

/// TLS has taken what came.
void Session::Core::seal() {
  if (handlers_.answered && socket_->tls_answered()) std::exchange(handlers_.answered, nullptr)();
  go_on(handshake_->look_at_tls());
}

/// TLS refuses what came. What it has to say to the peer leaves first.
void Session::Core::refuse(const Error& error) {
  const bool says_more = error.code != ErrorCode::kPeerGone && state_ <= State::kOpen && !socket_->idle();
  if (!says_more) return error.code == ErrorCode::kPeerGone ? lost(explain(error)) : finish(explain(error));
  begin_close(explain(error));
}

void Session::Core::open() {
  reactor_.cancel(timer_);
  state_ = State::kOpen;
  reader_.set_max_frame_bytes(wire::kMaxFrameBytes);
  start_keepalive();
  const SessionPeer peer = handshake_->peer();
  handshake_.reset();
  start_resumption(peer);
  // It may put others in the place of all handlers.
  if (const auto opened = std::exchange(handlers_.opened, nullptr)) opened(peer);
  take_outbox();
  if (state_ == State::kOpen) flush();
}

void Session::Core::flush() {
  if (broken_) return;
  const bool was_idle = socket_->idle();
  const auto sent = socket_->flush();
  if (!sent) {
    // The peer's last messages may still wait to be read, but not from within a handler. The system tells an
    // error once, so what reading finds after them is only the end.
    broken_ = explain(sent.error());
    reactor_.post([self = shared_from_this()] {
      if (!self->broken_) return;  // and is dialled anew
      self->hurried_ = true;
      self->paused_ = self->reads_on_ = false;
      if (self->state_ == State::kOpen) self->take_messages(Clock::now());
      for (int i = 0; i < kReadsPerEvent && self->socket_; ++i) self->receive();
      if (self->broken_) self->lost(Error(*self->broken_));
    });
    return;
  }
  if (keepalive_ && (*sent > 0 || was_idle)) keepalive_->taken(Clock::now());
  if (state_ == State::kClosing && socket_->idle()) return linger();
  if (paused_ && socket_->answers() <= kLowMark) {
    paused_ = false;
    read_on_later();
  }
  update_interest();
  if (state_ == State::kOpen && socket_->idle()) outbox_.pass_to(*socket_);
}

void Session::Core::update_interest() {
  std::uint32_t interest = 0;
  if (!peer_finished_ && !paused_) interest |= EPOLLIN | EPOLLRDHUP;
  if (!socket_->idle()) interest |= EPOLLOUT;
  if (interest != interest_) reactor_.change(socket_->fd(), interest);
  interest_ = interest;
}

void Session::Core::start_keepalive() {
  keepalive_.emplace(Keepalive::Limits{config_.keepalive, config_.hung}, Clock::now());
  timer_ = reactor_.after(keepalive_->beat(), [self = shared_from_this()] { self->tick(); });
}

/// Judges, says that this side lives, and comes again.
void Session::Core::tick() {
  if (paused_) {
    // It is this side that does not listen. A turn now and then keeps two sides that have both paused from
    // waiting for each other.
    keepalive_->heard(Clock::now());
    paused_ = false;
    update_interest();
    read_on_later();
  }
  if (keepalive_->silent(Clock::now())) {
    // What came while this thread was kept from running is life too.
    receive();
    if (state_ != State::kOpen) return;
  }
  if (socket_->idle()) keepalive_->taken(Clock::now());
  socket::Answers answers = socket_->unacknowledged();
  if (is_dark(answers)) return;
  const auto lately = config_.keepalive / 2;
  if (answers.awaited && answers.last >= lately && heard_elsewhere(lately)) answers.awaited = false;
  const auto slow_for = keepalive_->judge(Clock::now(), answers);
  if (!slow_for) return finish(explain(slow_for.error()));
  tell_slow(*slow_for);
  const bool confirmed = resumption_ && resumption_->confirm();
  // With frames waiting, those tell the peer as much as a heartbeat behind them would.
  if (socket_->idle() && !confirmed) outbox_.put(wire::encode(wire::Heartbeat{}), true);
  timer_ = reactor_.after(keepalive_->beat(), [self = shared_from_this()] { self->tick(); });
}

bool Session::Core::heard_elsewhere(std::chrono::milliseconds within) const {
  return handlers_.heard_within && handlers_.heard_within(within);
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
  auto [frames, request] = outbox_.take(state_ == State::kOpen);
  for (auto& frame : frames) socket_->push(std::move(frame));
  if (request && state_ < State::kOpen) return finish(std::move(*request));
  // Who gives the peer up does not wait for it; last messages do.
  if (request && state_ == State::kBroken && request->code == ErrorCode::kPeerGone) {
    return finish(std::move(*request));
  }
  if (request && state_ == State::kOpen) return begin_close(std::move(*request));
  if (!frames.empty() || (state_ == State::kOpen && !socket_->idle())) flush();
}

void Session::Core::begin_close(Error reason) {
  state_ = State::kClosing;
  reason_ = std::move(reason);
  if (resumption_) resumption_->stop();
  reactor_.cancel(timer_);
  timer_ = reactor_.after(config_.keepalive, [self = shared_from_this()] { self->finish(*self->reason_); });
  flush();
}

/// Everything is on its way. Closing now, with bytes of the peer unread, would make the system drop it; so
/// the peer gets a moment to close first.
void Session::Core::linger() {
  if (peer_finished_) return finish(*reason_);
  state_ = State::kLingering;
  socket_->finish_sending();
  update_interest();
  reactor_.cancel(timer_);
  timer_ = reactor_.after(config_.keepalive / Keepalive::kBeats,
                          [self = shared_from_this()] { self->finish(*self->reason_); });
}

void Session::Core::finish(Error reason) {
  if (state_ == State::kClosed) return;
  if (reason.code == ErrorCode::kPeerGone && dial_again()) return;
  const auto self = shared_from_this();
  state_ = State::kClosed;
  if (auto request = outbox_.shut()) reason = std::move(*request);
  if (reason_) reason = *reason_;
  reactor_.cancel(timer_);
  if (redialer_) redialer_->stop();
  if (resumption_) resumption_->stop();
  if (socket_) reactor_.unwatch(socket_->fd());
  socket_.reset();
  const Handlers handlers = std::exchange(handlers_, {});
  if (handlers.closed) handlers.closed(reason);
}

Error Session::Core::explain(Error error) const {
  return {error.code, fmt::format("session with {}: {}", peer_name_, error.message)};
}

}  // namespace p2p::engine
