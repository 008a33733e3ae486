// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/control_connection.h"

#include <sys/epoll.h>

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/memory_guard.h"

namespace p2p::engine {
namespace {

/// Buffers read for one event, so that one busy peer leaves others their turn.
constexpr int kReadsPerEvent = 16;

/// How long messages are taken before timers and other sessions get their turn.
constexpr std::chrono::milliseconds kTurn{2};

/// Bytes of answers that wait to leave before nothing more is read, and how few they must be before it goes
/// on. Honest peers keep far below: neither side asks for more than it can take.
constexpr std::size_t kHighMark = std::size_t{8} << 20;
constexpr std::size_t kLowMark = std::size_t{1} << 20;

constexpr std::uint32_t kReads = EPOLLIN | EPOLLRDHUP;

}  // namespace

void ControlConnection::take(std::unique_ptr<ControlSocket> socket, wire::FrameReader reader) {
  socket_ = std::move(socket);
  reader_ = std::move(reader);
}

Status ControlConnection::watch() {
  interest_ = kReads;
  return reactor_.watch(socket_->fd(), interest_,
                        [this, alive = owner_.hold()](std::uint32_t events) { on_events(events); });
}

void ControlConnection::on_events(std::uint32_t events) {
  guard([&] { handle(events); });
}

/// What runs out of memory over what a peer sends ends the peer's session, and nothing else.
void ControlConnection::guard(const std::function<void()>& work) {
  guard_memory("what a peer sent", work, [&] {
    if (socket_) owner_.on_refused({ErrorCode::kSystem, std::string(kOutOfMemory)});
  });
}

void ControlConnection::handle(std::uint32_t events) {
  if ((events & EPOLLOUT) != 0) flush();
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) paused_ = false;  // nothing leaves any more
  // What the peer said before its end is read first, whatever else the event tells.
  if (socket_ && (events & ~std::uint32_t{EPOLLOUT}) != 0) receive();
}

void ControlConnection::receive() {
  const auto until = Clock::now() + kTurn;
  for (int reads = 0; reads < kReadsPerEvent && socket_ && !reads_on_ && !paused_; ++reads) {
    const auto got = socket_->receive(reader_);
    if (!got) return owner_.on_refused(got.error());
    if (got->bytes == 0 && !got->end) return;
    owner_.on_heard();
    if (!socket_) return;
    if (got->end) {
      peer_finished_ = true;
      owner_.on_end();
      if (socket_) update_interest();
      return;
    }
    take_messages(until);
  }
}

void ControlConnection::take_messages(Clock::time_point until) {
  outbox_.pass_no_more();
  if (owner_.is_live()) outbox_.begin_turn();
  take_turn(until);
  outbox_.end_turn();
  if (!socket_) return;
  owner_.on_turn_end();
  if (!owner_.is_live()) return;
  flush();
  pause_above_mark();
}

/// Messages, until none is left, the turn is over or the peer does not take its answers.
void ControlConnection::take_turn(Clock::time_point until) {
  while (owner_.takes_messages()) {
    const std::size_t buffered = reader_.buffered();
    auto message = reader_.next();
    if (!message) return owner_.on_breach(message.error());
    if (!*message) return;
    owner_.on_message(std::move(**message), buffered - reader_.buffered());
    if (!owner_.is_live() || hurried_) continue;
    owner_.on_heard();
    if (outbox_.has_much()) {
      for (auto& frame : outbox_.take(true).frames) socket_->push(std::move(frame));
      flush();
      if (pause_above_mark()) return;
    }
    if (Clock::now() >= until) return read_on_later();
  }
  // What still comes is of no use to anyone.
  reader_ = wire::FrameReader();
}

void ControlConnection::read_on_later() {
  if (std::exchange(reads_on_, true)) return;
  reactor_.post([this, alive = owner_.hold()] { guard([this] { read_on(); }); });
}

void ControlConnection::read_on() {
  reads_on_ = false;
  if (!socket_ || paused_) return;
  take_messages(Clock::now() + kTurn);
  if (socket_) receive();
}

/// Looked at when much has been gathered and after each turn: on a slow machine a turn is over before it has
/// gathered much.
bool ControlConnection::pause_above_mark() {
  if (!owner_.is_live() || hurried_ || socket_->answers() < kHighMark) return false;
  paused_ = true;
  log(LogLevel::kDebug, "session with {}: {} bytes of answers wait to leave; nothing is read until they have",
      socket_->peer(), socket_->answers());
  owner_.on_paused();
  update_interest();
  return true;
}

bool ControlConnection::read_again() {
  if (!std::exchange(paused_, false)) return false;
  update_interest();
  read_on_later();
  return true;
}

void ControlConnection::flush() {
  if (broken_) return;
  const bool was_idle = socket_->idle();
  const auto sent = socket_->flush();
  if (!sent) {
    // The peer's last messages may still wait to be read, but not from within a handler. The system tells an
    // error once, so what reading finds after them is only the end.
    broken_ = sent.error();
    return reactor_.post([this, alive = owner_.hold()] { guard([this] { read_the_rest(); }); });
  }
  if (*sent > 0 || was_idle) owner_.on_taken();
  if (paused_ && socket_->answers() <= kLowMark) {
    paused_ = false;
    read_on_later();
  }
  update_interest();
  if (socket_->idle()) owner_.on_idle();
}

void ControlConnection::read_the_rest() {
  if (!broken_) return;  // another socket has taken its place
  hurried_ = true;
  paused_ = reads_on_ = false;
  if (owner_.is_live()) take_messages(Clock::now());
  for (int i = 0; i < kReadsPerEvent && socket_; ++i) receive();
  if (broken_) owner_.on_broken(Error(*broken_));
}

void ControlConnection::update_interest() {
  std::uint32_t interest = 0;
  if (!peer_finished_ && !paused_) interest |= kReads;
  if (!socket_->idle()) interest |= EPOLLOUT;
  if (interest != interest_) reactor_.change(socket_->fd(), interest);
  interest_ = interest;
}

void ControlConnection::finish_sending() {
  finished_sending_ = true;
  socket_->finish_sending();
  update_interest();
}

void ControlConnection::let_go(bool as_break) {
  if (!socket_) return;
  reactor_.unwatch(socket_->fd());
  if (as_break) socket_->discard_at_close();
  socket_.reset();
  reader_ = wire::FrameReader();
  broken_.reset();
  interest_ = 0;
  peer_finished_ = finished_sending_ = hurried_ = paused_ = false;
}

}  // namespace p2p::engine
