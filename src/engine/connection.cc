// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/connection.h"

#include <utility>

#include "base/error.h"
#include "base/futex.h"
#include "base/log.h"
#include "engine/messaging/message_stream_port.h"

namespace p2p::engine {

std::shared_ptr<Connection> Connection::make(std::shared_ptr<Context> context, ConnectionId id, Role role,
                                             Observer observer) {
  std::shared_ptr<Connection> connection(new Connection(std::move(context), id, role, std::move(observer)));
  connection->wire_up();
  return connection;
}

Connection::Connection(std::shared_ptr<Context> context, ConnectionId id, Role role, Observer observer)
    : context_(std::move(context)), id_(id), role_(role), observer_(std::move(observer)) {}

void Connection::wire_up() {
  const std::weak_ptr<Connection> weak = weak_from_this();
  const SendMessage send = [weak](const wire::Message& message) {
    if (const auto self = weak.lock()) self->say(message);
  };
  messages_ = std::make_shared<MessageStream>(
      context_->options.spin,
      MessageStream::Hooks{send,
                           [weak](wire::Message& message, PostUnlockActions& actions) -> Status {
                             if (const auto self = weak.lock()) return self->on_message(message, actions);
                             return {};
                           },
                           [weak](const Error& error) {
                             if (const auto self = weak.lock()) self->break_off(error);
                           }});
  const auto changed = [weak] {
    if (const auto self = weak.lock()) self->on_lanes_changed();
  };
  lanes_ = std::make_shared<LaneSet>(context_, send, changed, [messages = messages_] {
    return std::make_unique<MessageStreamPort>(messages);
  });
  imports_ = std::make_shared<RegionExchange>(context_, lanes_->router(), send);
  notifications_ = std::make_shared<Notifications>(
      messages_, Notifications::Amount{context_->options.notifications, context_->options.notification_bytes},
      context_->peer_budget);
  const auto ended = [weak] {
    if (const auto self = weak.lock()) self->changed();
  };
  transfers_ = std::make_shared<Transfers>(
      Transfers::Parts{life_, context_->regions, imports_, lanes_, notifications_,
                       std::make_shared<Verifier>(context_, send), ended, id_, context_->trace});
  receives_ = std::make_shared<Receives>(context_, messages_, context_->options.eager_bytes);
  sends_ = std::make_shared<Sends>(
      context_, messages_,
      Sends::Link{
          [imports = imports_](const wire::ReceiveSpan& span) { return imports->import_span(span); },
          [transfers = transfers_](std::span<const LocalSpan> local, std::span<const RemoteSpan> remote,
                                   std::function<void(Status)> done) {
            auto state = transfers->start(Operation::kWrite, local, remote, {});
            state->on_done([state = state.get(), done = std::move(done)] { done(state->status()); });
            return state;
          }});
  report_.emplace(
      ConnectionReport::Parts{context_->regions, lanes_, imports_, transfers_, receives_, notifications_});
  dispatch_.emplace(Dispatch::Parts{lanes_, imports_, messages_, sends_, receives_, notifications_,
                                    transfers_->verifier(), [weak](const wire::Bye& bye) {
                                      if (const auto self = weak.lock()) self->on_bye(bye);
                                    }});
}

void Connection::dial(std::string host, std::uint16_t port, SessionConfig config,
                      Clock::time_point deadline) {
  MutexLock lock(mutex_);
  session_ = Session::dial(*context_->reactor, std::move(host), port, std::move(config), handlers(deadline),
                           deadline);
}

void Connection::adopt(std::shared_ptr<Session> session, const SessionPeer& peer,
                       Clock::time_point deadline) {
  session->hand_over(handlers(deadline));
  {
    MutexLock lock(mutex_);
    session_ = std::move(session);
  }
  on_opened(peer, deadline);
}

// The session keeps the connection alive until it has closed.
Session::Handlers Connection::handlers(Clock::time_point deadline) {
  const auto self = shared_from_this();
  return {
      .opened = [self, deadline](const SessionPeer& peer) { self->on_opened(peer, deadline); },
      .message = [self](wire::Message message) { self->on_message(std::move(message)); },
      .closed = [self](const Error& error) { self->end(error); },
      .paused = [self] { self->report_->reads_paused(); },
      .slow = [self](std::chrono::milliseconds still) { self->report_->slow_for(still); },
      .broken = [self](const Error& why) { self->report_->session_broke(why); },
      .resumed =
          [self](const PeerPath& path) {
            self->report_->session_resumed();
            self->lanes_->moved(path);
          },
      .heard_within = [self](std::chrono::milliseconds time) { return self->lanes_->heard_within(time); }};
}

void Connection::on_opened(const SessionPeer& peer, Clock::time_point deadline) {
  {
    MutexLock lock(mutex_);
    peer_ = peer;
  }
  imports_->set_peer(peer.incarnation);
  imports_->answers().set_peer_identity(peer.identity);
  sends_->set_room(peer.introduction.eager_bytes);
  notifications_->set_peer_room({peer.introduction.notifications, peer.introduction.notification_bytes});
  const auto left = std::max(deadline - Clock::now(), Clock::duration::zero());
  timer_ = context_->reactor->after(left, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->timer_.reset();
    self->lanes_->expire({ErrorCode::kTimedOut, "not connected in time"});
  });
  lanes_->start(role_, peer);
  // A peer at this very address is on this host, where transports need the owner's message.
  // Mapping memory of a GPU takes its time, and so does asking for it: the channels come up beside.
  if (peer.path.local_address == peer.path.remote_address) imports_->start();
  if (role_ != Role::kConnector) return;
  // Questions leave first, and answers are taken in between: to open channels takes longer than to answer.
  if (imports_->asks()) return offer_later();
  while (lanes_->offer_next()) continue;
}

void Connection::offer_later() {
  context_->reactor->post([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self && self->lanes_->offer_next()) self->offer_later();
  });
}

void Connection::on_lanes_changed() {
  if (state() == ConnectionState::kConnecting && lanes_->met()) imports_->start();
  if (state() == ConnectionState::kConnecting && lanes_->settled()) {
    const bool late = !timer_;  // it has run
    if (timer_) context_->reactor->cancel(*std::exchange(timer_, std::nullopt));
    if (!lanes_->router()->any_usable()) {
      // What did not come up in time may work.
      return close_session(
          {late ? ErrorCode::kTimedOut : ErrorCode::kUnavailable,
           "no transport works between the two sides: " + lanes_->router()->routes().front().reason});
    }
    life_->open();
    imports_->start();
    imports_->open();
    report_->log_routes(id_);
    choose_path();
    observer_.opened(shared_from_this());
    life_->call_watchers();
  }
  if (state() == ConnectionState::kOpen && !lanes_->router()->any_usable() && !timer_) watch_for_end();
  if (state() != ConnectionState::kConnecting) choose_path();
  changed();
}

// MessageStream stay on a channel while it works.
void Connection::choose_path() { messages_->travel_by(lanes_->router()->message_runner(messages_->path())); }

// Every path is lost. Mostly the session's own end, with the true cause, is a moment behind; a session that
// outlives its paths is of no use. The peer, which may still wait for them, is told why.
void Connection::watch_for_end() {
  timer_ = context_->reactor->after(context_->options.keepalive / 6, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->timer_.reset();
    self->abort({ErrorCode::kPeerGone,
                 "every path to the peer was lost: " + self->lanes_->router()->routes().front().reason});
  });
}

void Connection::on_message(wire::Message message) {
  const Status taken = dispatch_->session_message(message);
  changed();
  if (!taken) break_off(taken.error());
}

/// The peer is told, too: it may be an honest one that met a bound.
void Connection::break_off(const Error& error) {
  const bool own_fault = error.code != ErrorCode::kProtocol;
  const Error why{error.code, own_fault ? error.message : "the peer broke the protocol: " + error.message};
  life_->refuse(why);  // before the peer hears of it
  say_bye((own_fault ? "the peer failed: " : "a breach of the protocol: ") + error.message);
  close_session(why);
}

Status Connection::on_message(wire::Message& message, PostUnlockActions& actions) {
  Status status = dispatch_->stream_message(message, actions);
  if (state() != ConnectionState::kOpen) actions.call([self = shared_from_this()] { self->changed(); });
  return status;
}

void Connection::on_bye(const wire::Bye& bye) {
  const Error error{ErrorCode::kPeerGone, "the peer closed the connection: " + bye.reason.text()};
  peer_said_bye_ = true;
  life_->refuse(error);
  sends_->stop(error);
  receives_->stop(error);
  notifications_->stop(error);
}

// Something happened that a closing side, or a waiting caller, may be waiting for.
void Connection::changed() {
  if (state() == ConnectionState::kClosing && drained() && peer_said_bye_) say_bye("nothing is left to do");
  life_->changed();
}

bool Connection::drained() const {
  return transfers_->done() && receives_->open() == 0 && sends_->open() == 0 && notifications_->open() == 0;
}

void Connection::end(const Error& reason) {
  Error error;
  std::shared_ptr<Session> session;
  {
    MutexLock lock(mutex_);
    error = life_->close(reason);
    session.swap(session_);
  }
  if (timer_) context_->reactor->cancel(*std::exchange(timer_, std::nullopt));
  lanes_->close(error);
  imports_->close(error, lanes_->fence());
  sends_->close(error);
  receives_->stop(error);
  notifications_->close(error);
  messages_->close();
  transfers_->close(error);
  changed();
  lanes_->fence()->when_passed(
      [self = shared_from_this(), error](bool passed) { self->end_receives(error, passed); });
}

void Connection::end_receives(const Error& reason, bool fence_passed) {
  if (std::exchange(ended_, true)) return;
  Error error = life_->close(reason);
  if (!fence_passed) error.message += kMayStillWrite;
  lanes_->fence()->release_held();
  receives_->close(error);
  changed();
  observer_.closed(shared_from_this());
  life_->call_watchers();
}

void Connection::end_now(const Error& error) {
  if (const auto session = this->session()) session->drop(error);
  end_receives(error, lanes_->fence()->passed());
}

std::shared_ptr<Session> Connection::session() const {
  MutexLock lock(mutex_);
  return session_;
}

void Connection::say_bye(std::string_view reason) {
  {
    MutexLock lock(mutex_);
    if (state() == ConnectionState::kConnecting || std::exchange(bye_said_, true)) return;
  }
  say(wire::Bye{reason});
}

Status Connection::wait_open(std::chrono::nanoseconds timeout) {
  if (Status here = check_process(); !here) return here;
  return life_->wait_open(deadline_after(timeout));
}

Peer Connection::peer() const {
  MutexLock lock(mutex_);
  return {peer_.path.remote_address, peer_.port, peer_.incarnation, peer_.introduction.note, peer_.identity};
}

Status Connection::close(std::chrono::nanoseconds timeout) {
  if (Status here = check_process(); !here) return here;
  const auto deadline = deadline_after(timeout);
  const Error error{ErrorCode::kCancelled, "the connection was closed by this side"};
  if (state() == ConnectionState::kClosed) return {};
  life_->refuse(error);
  if (state() == ConnectionState::kConnecting) {
    abort(error);
    return {};
  }
  sends_->stop(error);
  receives_->stop(error);
  say_bye("closed by its application");
  while (Clock::now() < deadline && state() != ConnectionState::kClosed) {
    const std::uint32_t seen = life_->changes();
    if (peer_said_bye_ && drained()) break;
    life_->wait(seen, deadline);
  }
  const bool complete = drained();
  abort(error);
  if (complete) return {};
  return fail(ErrorCode::kTimedOut, "close: transfers were still under way and are cancelled");
}

void Connection::abort(const Error& error) {
  life_->refuse(error);
  const auto session = this->session();
  if (!session) return;
  say_bye(error.message);
  messages_->travel_by(nullptr);  // what the peer has not heard yet must not be lost with the channels
  sends_->cut_off();
  lanes_->close(error);
  session->close(error);
}

// Channels that are idle open again by the next message, where no other one carries messages.
void Connection::open_message_path() {
  if (lanes_->may_be_idle() && !messages_->path()) lanes_->open_idle();
}

std::shared_ptr<TransferState> Connection::send(std::span<const LocalSpan> message) {
  if (Status usable = status(); !usable) return failed_transfer(usable.error());
  open_message_path();
  return sends_->post(message);
}

std::shared_ptr<TransferState> Connection::receive(std::span<const LocalSpan> into) {
  if (Status usable = status(); !usable) return failed_transfer(usable.error());
  open_message_path();
  return receives_->post(into);
}

std::shared_ptr<TransferState> Connection::notify(std::string_view payload) {
  if (Status usable = status(); !usable) return failed_transfer(usable.error());
  open_message_path();
  auto state = std::make_shared<TransferState>(payload.size());
  notifications_->send(payload, state);
  return state;
}

}  // namespace p2p::engine
