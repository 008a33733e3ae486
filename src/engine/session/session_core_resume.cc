// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a session does about the loss of its socket.
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/session/session_core.h"
#include "wire/encode.h"

namespace p2p::engine {
namespace {

/// Kept of what the peer has not handled. Honest peers are far below, as with answers.
constexpr std::size_t kMostKept = std::size_t{8} << 20;

/// A machine that is silent for so long, at two beats, is dialled again: a middlebox may have forgotten the
/// connection.
constexpr std::chrono::milliseconds kDark{500};

bool is_of_resumption(const wire::Message& message) {
  return std::holds_alternative<wire::Resumable>(message) ||
         std::holds_alternative<wire::CumulativeAck>(message) ||
         std::holds_alternative<wire::Resume>(message) ||
         std::holds_alternative<wire::ResumeAnswer>(message) ||
         std::holds_alternative<wire::Resumed>(message) ||
         std::holds_alternative<wire::AlternateAddresses>(message);
}

/// Where else the port is reached. An address that cannot be opened is no loss: another one may serve.
wire::AlternateAddresses other_addresses(const SessionConfig& config, const SessionPeer& peer) {
  wire::AlternateAddresses others;
  if (!config.addresses || !config.port) return others;
  for (const std::string& address : config.addresses(peer)) {
    if (address == peer.path.local_address || others.addresses.size() == wire::kMostOtherAddresses) continue;
    if (const auto port = config.port->open_at(address)) others.addresses.push_back({address, *port});
  }
  return others;
}

}  // namespace

void Session::Core::start_resumption(const SessionPeer& peer) {
  resumption_.emplace(
      reactor_,
      SessionResume::Settings{.role = redialer_ ? Role::kConnector : Role::kAcceptor,
                              .secret = peer.secret,
                              .sealed = config_.credentials != nullptr,
                              .host = peer.path.remote_address,
                              .host_port = peer.port,
                              .port = config_.port,
                              .process = config_.process,
                              .keepalive = config_.keepalive,
                              .hung = config_.hung},
      SessionResume::Hooks{[this](const wire::Message& message) { outbox_.put(wire::encode(message), true); },
                           [this](ResumeAttempt::Proven proven) { resume(std::move(proven)); },
                           [this](const Error& why) {
                             finish(
                                 {ErrorCode::kPeerGone, fmt::format("{}; {}", loss_->message, why.message)});
                           },
                           [this](std::chrono::milliseconds within) { return heard_elsewhere(within); }});
  resumption_->begin();
  if (resumption_->dials()) return;
  const wire::AlternateAddresses others = other_addresses(config_, peer);
  if (!others.addresses.empty()) outbox_.put(wire::encode(others), true);
}

/// One message of an open session.
void Session::Core::deliver(wire::Message message, std::size_t bytes) {
  if (is_of_resumption(message)) {
    if (Status taken = take_of_resumption(message); !taken) finish(explain(std::move(taken).error()));
    return;
  }
  if (message.index() <= wire::Message(wire::Introduction{}).index()) {
    return finish(explain(
        Error{ErrorCode::kProtocol, fmt::format("a {} came after the handshake", wire::name(message))}));
  }
  const bool counts = resumption_ && !std::holds_alternative<wire::Heartbeat>(message);
  if (handlers_.message) handlers_.message(std::move(message));
  if (counts) resumption_->count(bytes);
}

Status Session::Core::take_of_resumption(const wire::Message& message) {
  if (const auto* said = std::get_if<wire::Resumable>(&message); said && resumption_) {
    if (Status taken = resumption_->take(*said); !taken) return taken;
    outbox_.keep(kMostKept);
    return {};
  }
  if (const auto* others = std::get_if<wire::AlternateAddresses>(&message); others && resumption_) {
    return resumption_->take(*others);
  }
  if (const auto* handled = std::get_if<wire::CumulativeAck>(&message);
      handled && resumption_ && resumption_->possible()) {
    return outbox_.confirm(handled->messages);
  }
  return fail(ErrorCode::kProtocol, "a {} was not due", wire::name(message));
}

/// The connection is no more. That is the end, unless there may be another one.
void Session::Core::lost(Error cause, Clock::duration dark) {
  const bool may_go_on =
      state_ == State::kOpen && resumption_ && resumption_->possible() && !outbox_.closing();
  if (!may_go_on) return finish(std::move(cause));
  log(LogLevel::kInfo, "{}; the peer may live: {}", cause.message,
      resumption_->dials() ? "it is dialled again" : "it may dial again");
  state_ = State::kBroken;
  loss_ = std::move(cause);
  lost_at_ = Clock::now();
  if (handlers_.broken) handlers_.broken(*loss_);
  let_go_of_socket();
  reactor_.cancel(timer_);
  timer_ = reactor_.after(config_.hung + config_.keepalive,
                          [self = shared_from_this()] { self->finish(Error(*self->loss_)); });
  resumption_->suspend(dark);
}

void Session::Core::let_go_of_socket() {
  outbox_.detach();
  if (!socket_) return;
  reactor_.unwatch(socket_->fd());
  socket_->discard_at_close();
  socket_.reset();
  reader_ = wire::FrameReader();
  broken_.reset();
  peer_finished_ = hurried_ = paused_ = false;
}

void Session::Core::resume(ResumeAttempt::Proven proven) {
  const auto self = shared_from_this();
  if (state_ != State::kOpen && state_ != State::kBroken) return;
  const bool was_broken = state_ == State::kBroken;
  if (!was_broken && handlers_.broken) {
    handlers_.broken(Error{ErrorCode::kPeerGone, "the peer's end of its connection broke"});
  }
  let_go_of_socket();
  resumption_->settle();
  reactor_.cancel(timer_);
  state_ = State::kOpen;
  socket_ = std::move(proven.socket);
  reader_ = std::move(proven.reader);
  reader_.set_max_frame_bytes(wire::kMaxFrameBytes);
  if (!outbox_.attach(proven.handled)) {
    return finish(explain(Error{ErrorCode::kPeerGone, "more was on its way than is kept for another one"}));
  }
  interest_ = EPOLLIN | EPOLLRDHUP;
  const Status ready =
      reactor_.watch(socket_->fd(), interest_, [self](std::uint32_t events) { self->on_events(events); });
  if (!ready) return finish(explain(ready.error()));
  if (!resumption_->dials()) {
    proven.answer.messages = resumption_->handled();
    socket_->push(wire::encode(proven.answer));
  }
  dark_beats_ = 0;
  const auto gone = was_broken ? Clock::now() - lost_at_ : Clock::duration{};
  log(LogLevel::kInfo, "session with {}: goes on over another connection, with {}, attempt {}, after {} ms",
      peer_name_, socket_->peer(), proven.attempt,
      std::chrono::duration_cast<std::chrono::milliseconds>(gone).count());
  loss_.reset();
  if (handlers_.resumed) handlers_.resumed(socket_->path());
  start_keepalive();
  take_outbox();
  if (state_ == State::kOpen) flush();
  if (state_ == State::kOpen) read_on_later();
}

/// The peer's machine owes an answer for so long that another connection is tried, while there is time.
bool Session::Core::is_dark(const socket::Answers& answers) {
  if (!resumption_ || !resumption_->possible() || !resumption_->dials()) return false;
  if (answers.unsure) return false;
  const bool dark = answers.awaited && answers.last >= std::max(config_.keepalive / 3, kDark);
  dark_beats_ = dark ? dark_beats_ + 1 : 0;
  if (dark_beats_ < 2) return false;
  lost(explain(Error{ErrorCode::kPeerGone,
                     fmt::format("its machine was not heard of for {} ms", answers.last.count())}),
       answers.last);
  return true;
}

}  // namespace p2p::engine
