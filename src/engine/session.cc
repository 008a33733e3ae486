// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "drivers/crypto/crypto.h"
#include "engine/session_core.h"
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

/// Messages are sent off within a turn once they have so many bytes.
constexpr std::size_t kGather = std::size_t{64} << 10;

}  // namespace

Session::Core::Core(Reactor& reactor, SessionConfig config, Handlers handlers, Clock::time_point deadline)
    : reactor_(reactor), config_(std::move(config)), handlers_(std::move(handlers)), deadline_(deadline) {}

void Session::Core::start_deadline() {
  timer_ = reactor_.after(deadline_ - Clock::now(), [self = shared_from_this()] {
    const std::string at =
        self->dialer_ ? self->dialer_->describe() : fmt::format("wait for {}", self->handshake_->awaits());
    self->finish(self->explain(Error{ErrorCode::kTimedOut, at + ": the deadline passed first"}));
  });
}

void Session::Core::dial(std::string host, std::uint16_t port) {
  if (state_ == State::kClosed) return;
  peer_name_ = fmt::format("{}:{}", host, port);
  host_ = std::move(host);
  port_ = port;
  try_dial();
}

void Session::Core::try_dial() {
  redial_.dialled();
  dialer_ = std::make_shared<Dialer>(reactor_, host_, port_);
  start_deadline();
  dialer_->start([self = shared_from_this()](Result<UniqueFd> socket) {
    self->dialer_ = nullptr;
    if (!socket) return self->finish(self->explain(std::move(socket).error()));
    self->reactor_.cancel(self->timer_);
    self->adopt(std::move(*socket), Role::kConnector);
  });
}

/// Closed in the handshake, and without a reason: the peer may have been too busy with others.
bool Session::Core::dial_later() {
  const bool unexplained = state_ == State::kHandshake && reader_.buffered() == 0;
  if (!unexplained || host_.empty() || closing_requested()) return false;
  const auto pause = redial_.pause();
  if (!pause || Clock::now() + *pause >= deadline_) return false;
  reactor_.cancel(timer_);
  reactor_.unwatch(socket_->fd());
  socket_.reset();
  handshake_.reset();
  broken_.reset();
  peer_finished_ = hurried_ = false;
  interest_ = 0;
  state_ = State::kDialing;
  timer_ = reactor_.after(*pause, [self = shared_from_this()] { self->try_dial(); });
  return true;
}

Handshake::Setup Session::Core::handshake_setup(Role role) const {
  Handshake::Setup setup{
      .role = role, .hello = {}, .introduction = config_.introduction, .allow = config_.allow};
  setup.hello.incarnation = config_.incarnation;
  if (const auto& credentials = config_.credentials) {
    const auto proof = credentials->by_key() ? wire::Proof::kKey : wire::Proof::kCertificate;
    setup.hello.proof = static_cast<std::uint8_t>(proof);
  }
  return setup;
}

void Session::Core::adopt(UniqueFd socket, Role role) {
  if (state_ == State::kClosed) return;
  state_ = State::kHandshake;
  socket_.emplace(std::move(socket));
  if (peer_name_.empty()) peer_name_ = socket_->peer();
  Handshake::Setup setup = handshake_setup(role);
  Status ready = crypto::random_bytes(setup.hello.nonce);
  if (ready) ready = socket_->prepare(config_.hung);
  if (ready) {
    interest_ = EPOLLIN | EPOLLRDHUP;
    ready = reactor_.watch(socket_->fd(), interest_,
                           [self = shared_from_this()](std::uint32_t events) { self->on_events(events); });
  }
  if (!ready) return finish(explain(std::move(ready).error()));
  handshake_.emplace(std::move(setup));
  start_deadline();
  for (wire::Message& message : handshake_->start().send) socket_->push(wire::encode(message));
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
  for (int reads = 0; reads < kReadsPerEvent && socket_ && !going_on_ && !paused_; ++reads) {
    const auto got = socket_->receive(reader_);
    if (!got) return refuse(got.error());
    if (got->bytes == 0 && !got->end) return;
    if (keepalive_) keepalive_->heard(Clock::now());
    if (state_ == State::kHandshake && handshake_->sealing()) look_at_tls();
    if (!socket_) return;
    if (got->end) return take_end();
    take_messages(until);
  }
}

void Session::Core::take_end() {
  peer_finished_ = true;
  if (closing_requested()) run_scheduled();
  if (state_ == State::kLingering) return finish(*reason_);
  if (state_ == State::kClosing) return update_interest();
  if (broken_) return finish(*broken_);
  const std::string when = state_ == State::kHandshake
                               ? fmt::format(" during the handshake, before {}", handshake_->awaits())
                               : "";
  finish(explain(Error{ErrorCode::kPeerGone, "the peer closed the connection" + when}));
}

void Session::Core::take_messages(Clock::time_point until) {
  {
    MutexLock lock(mutex_);
    if (state_ == State::kOpen) gathering_ = std::this_thread::get_id();
    direct_ = false;
  }
  take_turn(until);
  {
    MutexLock lock(mutex_);
    gathering_.reset();
    gathered_ = 0;
  }
  if (state_ == State::kClosed) return;
  run_scheduled();
  if (state_ == State::kOpen) flush();
  pause_above_mark();
}

/// Messages, until none is left, the turn is over or the peer does not take its answers.
void Session::Core::take_turn(Clock::time_point until) {
  while (state_ == State::kHandshake || (state_ == State::kOpen && !closing_requested())) {
    if (state_ == State::kHandshake) reader_.set_max_frame_bytes(handshake_->max_frame_bytes());
    auto message = reader_.next();
    if (!message) return finish(explain(std::move(message).error()));
    if (!*message) return;
    if (state_ == State::kHandshake) {
      shake_hands(handshake_->take(std::move(**message)));
    } else if ((*message)->index() <= wire::Message(wire::Introduction{}).index()) {
      finish(explain(
          Error{ErrorCode::kProtocol, fmt::format("a {} came after the handshake", wire::name(**message))}));
    } else if (handlers_.message) {
      handlers_.message(std::move(**message));
    }
    if (state_ != State::kOpen || hurried_) continue;
    if (keepalive_) keepalive_->heard(Clock::now());
    if (gathered_much()) {
      send_gathered();
      if (pause_above_mark()) return;
    }
    if (Clock::now() >= until) return go_on_later();
  }
  // Closed or closing: what still comes is of no use to anyone.
  reader_ = wire::FrameReader();
}

void Session::Core::go_on_later() {
  if (std::exchange(going_on_, true)) return;
  reactor_.post([self = shared_from_this()] { self->go_on(); });
}

void Session::Core::go_on() {
  going_on_ = false;
  if (state_ == State::kClosed || paused_) return;
  take_messages(Clock::now() + kTurn);
  if (state_ != State::kClosed) receive();
}

bool Session::Core::gathered_much() {
  MutexLock lock(mutex_);
  return gathered_ >= kGather;
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

/// The reactor's thread sends within a turn what it gathered so far.
void Session::Core::send_gathered() {
  std::deque<ControlSocket::Frame> frames;
  {
    MutexLock lock(mutex_);
    frames.swap(outbox_);
    gathered_ = 0;
  }
  for (auto& frame : frames) socket_->push(std::move(frame));
  flush();
}

void Session::Core::shake_hands(Handshake::Step step) {
  for (const wire::Message& each : step.send) socket_->push(wire::encode(each));
  if (step.error && step.send.empty()) return finish(explain(std::move(*step.error)));
  if (step.error) return begin_close(explain(std::move(*step.error)));
  if (step.seal) return start_tls();
  if (handshake_->done()) return open();
  flush();
}

void Session::Core::start_tls() {
  if (reader_.buffered() != 0) {
    return finish(explain(Error{ErrorCode::kProtocol, "something other than TLS follows the peer's hello"}));
  }
  // The connector speaks first: the acceptor's hello has gone out before it can begin.
  const bool dials = handshake_->role() == Role::kConnector;
  const auto side = dials ? crypto::Tls::Side::kDials : crypto::Tls::Side::kAccepts;
  if (Status started = socket_->start_tls(config_.credentials, side); !started) {
    return finish(explain(std::move(started).error()));
  }
  flush();
}

/// Goes on with the handshake once TLS says who the peer is.
void Session::Core::look_at_tls() {
  auto sealed = socket_->sealed(handshake_->hellos());
  if (!sealed) return finish(explain(std::move(sealed).error()));
  if (!*sealed) return flush();
  secret_ = (*sealed)->secret;
  shake_hands(handshake_->sealed(std::move((*sealed)->peer)));
}

/// TLS refuses what came. What it has to say to the peer leaves first.
void Session::Core::refuse(const Error& error) {
  const bool says_more = error.code != ErrorCode::kPeerGone && state_ <= State::kOpen && !socket_->idle();
  if (!says_more) return finish(explain(error));
  begin_close(explain(error));
}

void Session::Core::open() {
  reactor_.cancel(timer_);
  state_ = State::kOpen;
  reader_.set_max_frame_bytes(wire::kMaxFrameBytes);
  start_keepalive();
  const SessionPeer peer{.incarnation = handshake_->peer_hello().incarnation,
                         .introduction = handshake_->peer_introduction(),
                         .identity = handshake_->peer_identity(),
                         .secret = config_.credentials ? secret_ : handshake_->hellos(),
                         .path = socket_->path(),
                         .port = socket_->peer_port()};
  handshake_.reset();
  if (handlers_.opened) handlers_.opened(peer);
  run_scheduled();
  if (state_ == State::kOpen) flush();
}

void Session::Core::flush() {
  if (broken_) return;
  const bool was_idle = socket_->idle();
  const auto sent = socket_->flush();
  if (!sent) {
    // The peer's last words may still wait to be read, but not from within a handler. The system tells an
    // error once, so what reading finds after them is only the end.
    broken_ = explain(sent.error());
    reactor_.post([self = shared_from_this()] {
      if (!self->broken_) return;  // and is dialled anew
      self->hurried_ = true;
      self->paused_ = self->going_on_ = false;
      if (self->state_ == State::kOpen) self->take_messages(Clock::now());
      for (int i = 0; i < kReadsPerEvent && self->socket_; ++i) self->receive();
      if (self->broken_) self->finish(Error(*self->broken_));
    });
    return;
  }
  if (keepalive_ && (*sent > 0 || was_idle)) keepalive_->taken(Clock::now());
  if (state_ == State::kClosing && socket_->idle()) return linger();
  if (paused_ && socket_->answers() <= kLowMark) {
    paused_ = false;
    go_on_later();
  }
  update_interest();
  if (state_ != State::kOpen || !socket_->idle()) return;
  MutexLock lock(mutex_);
  direct_ = accepting_ && outbox_.empty() && !gathering_;
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
    go_on_later();
  }
  if (keepalive_->silent(Clock::now())) {
    // What came while this thread was kept from running is life too.
    receive();
    if (state_ != State::kOpen) return;
  }
  if (socket_->idle()) keepalive_->taken(Clock::now());
  const auto slow_for = keepalive_->judge(Clock::now(), socket_->unacknowledged());
  if (!slow_for) return finish(explain(slow_for.error()));
  tell_slow(*slow_for);
  // With frames waiting, those tell the peer as much as a heartbeat behind them would.
  if (socket_->idle()) enqueue(wire::Heartbeat{});
  timer_ = reactor_.after(keepalive_->beat(), [self = shared_from_this()] { self->tick(); });
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
    return request_close(Error{ErrorCode::kMessageTooLong,
                               fmt::format("send a {} of {} bytes: frames have at most {}",
                                           wire::name(message), frame.size(), wire::kMaxFrameBytes)});
  }
  MutexLock lock(mutex_);
  if (!accepting_) return;
  if (direct_) {
    const std::size_t sent = socket_->send_now(frame);
    if (sent == frame.size() && !socket_->left_over()) return;
    direct_ = false;
    frame.erase(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(sent));
  }
  gathered_ += frame.size();
  if (!frame.empty()) outbox_.push_back({std::move(frame), gathering_ == std::this_thread::get_id()});
  if (!gathering_) schedule();
}

void Session::Core::request_close(Error reason) {
  MutexLock lock(mutex_);
  if (!accepting_) return;
  accepting_ = false;
  direct_ = false;
  close_request_ = std::move(reason);
  schedule();
}

void Session::Core::schedule() {
  if (scheduled_) return;
  scheduled_ = true;
  reactor_.post([self = shared_from_this()] { self->run_scheduled(); });
}

bool Session::Core::closing_requested() {
  MutexLock lock(mutex_);
  return close_request_.has_value();
}

/// Moves what other threads left to the socket.
void Session::Core::run_scheduled() {
  std::deque<ControlSocket::Frame> frames;
  std::optional<Error> request;
  {
    MutexLock lock(mutex_);
    scheduled_ = false;
    request = close_request_;
    if (state_ == State::kOpen) frames.swap(outbox_);
  }
  for (auto& frame : frames) socket_->push(std::move(frame));
  if (request && state_ < State::kOpen) return finish(std::move(*request));
  if (request && state_ == State::kOpen) return begin_close(std::move(*request));
  if (!frames.empty() || (state_ == State::kOpen && !socket_->idle())) flush();
}

void Session::Core::begin_close(Error reason) {
  state_ = State::kClosing;
  reason_ = std::move(reason);
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
  if (reason.code == ErrorCode::kPeerGone && dial_later()) return;
  const auto self = shared_from_this();
  state_ = State::kClosed;
  {
    MutexLock lock(mutex_);
    accepting_ = false;
    direct_ = false;
    outbox_.clear();
    if (close_request_) reason = *close_request_;
  }
  if (reason_) reason = *reason_;
  reactor_.cancel(timer_);
  if (dialer_) dialer_->stop();
  dialer_ = nullptr;
  if (socket_) reactor_.unwatch(socket_->fd());
  socket_.reset();
  const Handlers handlers = std::exchange(handlers_, {});
  if (handlers.closed) handlers.closed(reason);
}

Error Session::Core::explain(Error error) const {
  return {error.code, fmt::format("session with {}: {}", peer_name_, error.message)};
}

Session::Session(std::shared_ptr<Core> core) : core_(std::move(core)) {}

Session::~Session() { core_->request_close(Error{ErrorCode::kCancelled, "the session was dropped"}); }

std::shared_ptr<Session> Session::dial(Reactor& reactor, std::string host, std::uint16_t port,
                                       SessionConfig config, Handlers handlers,
                                       std::chrono::steady_clock::time_point deadline) {
  auto core = std::make_shared<Core>(reactor, std::move(config), std::move(handlers), deadline);
  reactor.post([core, host = std::move(host), port] { core->dial(host, port); });
  return std::make_shared<Session>(std::move(core));
}

std::shared_ptr<Session> Session::accept(Reactor& reactor, UniqueFd socket, SessionConfig config,
                                         Handlers handlers, std::chrono::steady_clock::time_point deadline) {
  auto core = std::make_shared<Core>(reactor, std::move(config), std::move(handlers), deadline);
  // Tasks are copyable; a descriptor is not.
  reactor.post([core, held = std::make_shared<UniqueFd>(std::move(socket))] {
    core->adopt(std::move(*held), Role::kAcceptor);
  });
  return std::make_shared<Session>(std::move(core));
}

void Session::send(const wire::Message& message) { core_->enqueue(message); }

void Session::close(Error reason) { core_->request_close(std::move(reason)); }

}  // namespace p2p::engine
