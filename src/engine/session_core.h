// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/redial.h"
#include "engine/control_socket.h"
#include "engine/dialer.h"
#include "engine/handshake.h"
#include "engine/keepalive.h"
#include "engine/reactor.h"
#include "engine/session.h"
#include "wire/decode.h"

namespace p2p::engine {

/// What a Session does. Kept alive by the session and, until it has closed, by the reactor. All on the
/// reactor's thread but `enqueue` and `request_close`.
class Session::Core : public std::enable_shared_from_this<Core> {
 public:
  using Clock = std::chrono::steady_clock;

  Core(Reactor& reactor, SessionConfig config, Handlers handlers, Clock::time_point deadline);

  void dial(std::string host, std::uint16_t port);
  void adopt(UniqueFd socket, Role role);

  void enqueue(const wire::Message& message);
  void request_close(Error reason);

 private:
  enum class State { kDialing, kHandshake, kOpen, kClosing, kLingering, kClosed };

  void start_deadline();
  void try_dial();
  bool dial_later();
  void on_events(std::uint32_t events);
  void receive();
  void take_end();
  void take_messages(Clock::time_point until);
  void take_turn(Clock::time_point until);
  void go_on_later();
  void go_on();
  bool gathered_much() P2P_EXCLUDES(mutex_);
  bool pause_above_mark();
  void send_gathered();
  Handshake::Setup handshake_setup(Role role) const;
  void shake_hands(Handshake::Step step);
  void start_tls();
  void look_at_tls();
  void refuse(const Error& error);
  void open();
  void flush();
  void update_interest();
  void begin_close(Error reason);
  void linger();
  void finish(Error reason);

  void start_keepalive();
  void tick();
  void tell_slow(std::chrono::milliseconds still);

  bool closing_requested();
  void schedule() P2P_REQUIRES(mutex_);
  void run_scheduled();
  Error explain(Error error) const;

  Reactor& reactor_;
  SessionConfig config_;
  Handlers handlers_;
  Clock::time_point deadline_;
  std::string peer_name_;
  State state_ = State::kDialing;
  std::string host_;  // that is dialled, and its port
  std::uint16_t port_ = 0;
  Redial redial_;
  std::shared_ptr<Dialer> dialer_;
  std::optional<ControlSocket> socket_;
  std::optional<Handshake> handshake_;
  std::array<std::byte, 32> secret_{};
  wire::FrameReader reader_{Handshake::kStrangerFrameBytes};
  std::uint32_t interest_ = 0;
  bool peer_finished_ = false;
  bool going_on_ = false;        // posted: messages that were read wait for their next turn
  bool hurried_ = false;         // the connection is at its end: what was read is handled in one turn
  bool paused_ = false;          // nothing is read until the peer has taken its answers
  std::optional<Error> broken_;  // a write failed; what can still be read comes first
  std::optional<Error> reason_;  // of a close under way
  Reactor::TimerId timer_{};     // the handshake's deadline, then keepalive, then the close's limit
  bool slow_ = false;            // the peer is, and the handler was told
  std::optional<Keepalive> keepalive_;

  Mutex mutex_;
  std::deque<ControlSocket::Frame> outbox_ P2P_GUARDED_BY(mutex_);
  std::optional<Error> close_request_ P2P_GUARDED_BY(mutex_);
  bool accepting_ P2P_GUARDED_BY(mutex_) = true;  // neither closed nor asked to close
  bool scheduled_ P2P_GUARDED_BY(mutex_) = false;
  std::optional<std::thread::id> gathering_ P2P_GUARDED_BY(mutex_);  // takes messages, and sends after that
  std::size_t gathered_ P2P_GUARDED_BY(mutex_) = 0;                  // bytes in outbox_ since then

  // Open, and nothing waits to leave: whoever sends writes to the socket itself, which spares a wake-up. From
  // the first byte that the socket does not take, the reactor's thread writes until all is out.
  bool direct_ P2P_GUARDED_BY(mutex_) = false;
};

}  // namespace p2p::engine
