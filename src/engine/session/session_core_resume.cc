// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a session does about the loss of its socket.
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "drivers/socket/interfaces.h"
#include "engine/session/session_core.h"
#include "wire/encode.h"

namespace p2p::engine {
namespace {

/// Kept of what the peer has not handled. Honest peers are far below, as with answers.
constexpr std::size_t kMostKept = std::size_t{8} << 20;

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

/// What is told of this process, which other hosts have no use for.
std::optional<ProcessId> told_process(const SessionConfig& config, const PeerPath& path) {
  if (path.local_address == path.remote_address) return config.process;
  const auto theirs = socket::Address::parse(path.remote_address, 0);
  return theirs && socket::is_local(*theirs) ? config.process : std::nullopt;
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
                              .process = told_process(config_, peer.path),
                              .keepalive = config_.keepalive,
                              .hung = config_.hung},
      SessionResume::Hooks{[this](const wire::Message& message) { outbox_.put(wire::encode(message), true); },
                           [this](ResumeAttempt::Proven proven) { resume(std::move(proven)); },
                           [this](const Error& why) {
                             finish({ErrorCode::kPeerGone,
                                     fmt::format("{}; {}", states_.why().message, why.message)});
                           },
                           [this](std::chrono::milliseconds within) {
                             return handlers_.heard_within && handlers_.heard_within(within);
                           }});
  resumption_->begin();
  if (resumption_->dials()) return;
  const wire::AlternateAddresses others = other_addresses(config_, peer);
  if (!others.addresses.empty()) outbox_.put(wire::encode(others), true);
}

/// Of a handshake, or of an open session.
void Session::Core::on_message(wire::Message message, std::size_t bytes) {
  if (states_.is(SessionState::kConnecting)) return go_on(handshake_->take(std::move(message)));
  if (is_of_resumption(message)) {
    if (Status taken = take_of_resumption(message); !taken) finish(explain(taken.error()));
    return;
  }
  if (message.index() <= wire::Message(wire::Introduction{}).index()) {
    return finish(explain(
        Error{ErrorCode::kProtocol, fmt::format("a {} came after the handshake", wire::name(message))}));
  }
  const bool counts = !std::holds_alternative<wire::Heartbeat>(message);
  if (std::holds_alternative<wire::Bye>(message)) resumption_->peer_leaves();
  if (handlers_.message) handlers_.message(std::move(message));
  if (counts) resumption_->count(bytes);
}

Status Session::Core::take_of_resumption(const wire::Message& message) {
  if (const auto* said = std::get_if<wire::Resumable>(&message)) {
    if (Status taken = resumption_->take(*said); !taken) return taken;
    outbox_.keep(kMostKept);
    return {};
  }
  if (const auto* others = std::get_if<wire::AlternateAddresses>(&message)) {
    return resumption_->take(*others);
  }
  if (const auto* handled = std::get_if<wire::CumulativeAck>(&message); handled && resumption_->possible()) {
    return outbox_.confirm(handled->messages);
  }
  return fail(ErrorCode::kProtocol, "a {} was not due", wire::name(message));
}

/// The connection is no more. That is the end, unless there may be another one.
void Session::Core::lost(Error cause, Clock::duration dark) {
  const bool may_go_on = is_live() && resumption_->possible() && !outbox_.closing();
  if (!may_go_on) return finish(std::move(cause));
  log(LogLevel::kInfo, "{}; the peer may live: {}", cause.message,
      resumption_->dials() ? "it is dialled again" : "it may dial again");
  states_.on(SessionEvent::kBroke, Clock::now(), std::move(cause));
  if (handlers_.broken) handlers_.broken(states_.why());
  outbox_.detach();
  connection_.let_go(true);
  start_limit();
  resumption_->suspend(dark);
}

/// Another connection is the peer's. The one that there is may look well at this end.
void Session::Core::resume(ResumeAttempt::Proven proven) {
  const auto self = shared_from_this();
  const bool was_live = is_live();
  const auto lost_at = states_.since();
  if (!states_.on(SessionEvent::kProven, Clock::now())) return;
  if (was_live && handlers_.broken) {
    handlers_.broken(Error{ErrorCode::kPeerGone, "the peer's end of its connection broke"});
  }
  outbox_.detach();
  connection_.let_go(true);
  resumption_->settle();
  const auto attempt = proven.attempt;
  if (Status moved = move_to(std::move(proven)); !moved) return finish(explain(moved.error()));
  states_.on(SessionEvent::kMoved, Clock::now());
  const auto gone = was_live ? Clock::duration{} : Clock::now() - lost_at;
  log(LogLevel::kInfo, "session with {}: goes on over another connection, with {}, attempt {}, after {} ms",
      peer_name_, connection_.socket().peer(), attempt,
      std::chrono::duration_cast<std::chrono::milliseconds>(gone).count());
  start_keepalive();
  if (handlers_.resumed) handlers_.resumed(connection_.socket().path());
  take_outbox();
  if (is_live()) connection_.flush();
  if (is_live()) connection_.read_on_later();
}

Status Session::Core::move_to(ResumeAttempt::Proven proven) {
  proven.reader.set_max_frame_bytes(wire::kMaxFrameBytes);
  connection_.take(std::move(proven.socket), std::move(proven.reader));
  if (!outbox_.attach(proven.handled)) {
    return fail(ErrorCode::kPeerGone, "more was on its way than is kept for another one");
  }
  if (Status watched = connection_.watch(); !watched) return watched;
  if (!resumption_->dials()) {
    proven.answer.messages = resumption_->handled();
    connection_.socket().push(wire::encode(proven.answer));
  }
  return {};
}

}  // namespace p2p::engine
