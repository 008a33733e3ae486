// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "engine/loop/reactor.h"
#include "engine/session/control_socket.h"
#include "engine/session/outbox.h"
#include "p2p/result.h"
#include "wire/decode.h"
#include "wire/messages.h"

namespace p2p::engine {

/// The connection that a session has now: its socket on the reactor, and the turns in which what comes is
/// handed on, so that however much the peer sends, timers and other sessions get their turn. It reads nothing
/// more while the peer leaves too many of its answers. What it is for, and what an end means, is its owner's.
/// On the reactor's thread.
class ControlConnection {
 public:
  using Clock = std::chrono::steady_clock;

  /// The session, of which this is a part. Any of these may end the connection.
  class Owner {
   public:
    virtual ~Owner() = default;

    /// Keeps both alive.
    virtual std::shared_ptr<void> hold() = 0;

    virtual bool is_live() const = 0;         ///< what comes is the application's
    virtual bool takes_messages() const = 0;  ///< what comes is of use to anybody
    virtual void on_heard() = 0;              ///< the peer said something
    virtual void on_taken() = 0;              ///< the peer took something, or nothing waited for that
    virtual void on_message(wire::Message message, std::size_t bytes) = 0;
    virtual void on_turn_end() = 0;
    virtual void on_idle() = 0;    ///< nothing waits to leave
    virtual void on_paused() = 0;  ///< it reads nothing more
    virtual void on_end() = 0;     ///< the peer sends nothing more

    /// What came is no message; TLS or the system refuse to go on; the connection broke, and what could still
    /// be read has been handed on.
    virtual void on_breach(const Error& error) = 0;
    virtual void on_refused(const Error& error) = 0;
    virtual void on_broken(const Error& error) = 0;
  };

  /// All outlive it.
  ControlConnection(Reactor& reactor, Outbox& outbox, Owner& owner)
      : reactor_(reactor), outbox_(outbox), owner_(owner) {}

  /// Uses this socket from here on; `reader` may hold what has come already. It reads once it is watched.
  void take(std::unique_ptr<ControlSocket> socket, wire::FrameReader reader);
  Status watch();

  bool is_open() const { return socket_ != nullptr; }
  ControlSocket& socket() { return *socket_; }
  wire::FrameReader& reader() { return reader_; }

  /// Reads and hands on now.
  void receive();

  /// Hands on what was read already, in a turn of its own.
  void read_on_later();

  /// If it reads nothing, it does again. A turn now and then keeps two sides that have both paused from
  /// waiting for each other.
  bool read_again();

  void flush();

  /// Nothing more is sent; the peer is told.
  void finish_sending();
  bool finished_sending() const { return finished_sending_; }
  bool peer_finished() const { return peer_finished_; }

  /// A write failed; what can still be read comes first.
  const std::optional<Error>& broken() const { return broken_; }

  /// Is through with the socket. `as_break`: the peer hears of a reset, which is no end.
  void let_go(bool as_break);

 private:
  void on_events(std::uint32_t events);
  void guard(const std::function<void()>& work);
  void handle(std::uint32_t events);
  void take_messages(Clock::time_point until);
  void take_turn(Clock::time_point until);
  void read_on();
  void read_the_rest();
  bool pause_above_mark();
  void update_interest();

  Reactor& reactor_;
  Outbox& outbox_;
  Owner& owner_;
  std::unique_ptr<ControlSocket> socket_;
  wire::FrameReader reader_{wire::kStrangerFrameBytes};
  std::uint32_t interest_ = 0;
  bool peer_finished_ = false;
  bool finished_sending_ = false;
  bool reads_on_ = false;  // posted: messages that were read wait for their next turn
  bool hurried_ = false;   // the connection is at its end: what was read is handled in one turn
  bool paused_ = false;    // nothing is read until the peer has taken its answers
  std::optional<Error> broken_;
};

}  // namespace p2p::engine
