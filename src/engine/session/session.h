// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/process_id.h"
#include "base/unique_fd.h"
#include "drivers/crypto/credentials.h"
#include "engine/loop/reactor.h"
#include "p2p/memory.h"
#include "p2p/options.h"
#include "p2p/result.h"
#include "transport/stream_port.h"
#include "transport/transport.h"
#include "wire/messages.h"

namespace p2p::engine {

struct SessionPeer;

/// What this side brings into the handshake.
struct SessionConfig {
  Incarnation incarnation = 0;
  std::shared_ptr<const crypto::Credentials> credentials;  ///< null: neither side proves anything
  std::vector<std::string> allow;                          ///< identities that may connect; empty: all
  wire::Introduction introduction;
  Encryption encryption = Encryption::kOff;  ///< of data, as this side wishes it
  std::chrono::milliseconds keepalive{3000};
  std::chrono::milliseconds hung{30000};
  std::shared_ptr<StreamPort> port;  ///< at which who dialled may dial again; null: its connection is all
  std::optional<ProcessId> process;  ///< this one

  /// Addresses of this host, numeric, at which `port` is or may be opened for this peer. May be null.
  std::function<std::vector<std::string>(const SessionPeer&)> addresses = nullptr;
};

/// What the handshake gave.
struct SessionPeer {
  Incarnation incarnation = 0;
  wire::Introduction introduction;
  std::string identity;                ///< of the key or certificate; may be empty
  std::array<std::byte, 32> secret{};  ///< the same on both sides, new for each session
  PeerPath path;
  std::uint16_t port = 0;     ///< the peer's, of the control connection
  bool encrypts = false;      ///< streams of data are to be encrypted, as both sides have agreed
  std::uint16_t version = 0;  ///< of the wire
};

/// One control connection: hello, TLS where there are keys, introduction, then messages both ways with
/// keepalive. If it breaks while the peer lives, another one takes its place within the keepalive time, and
/// no message is lost or comes twice: engine::SessionResume. Lives on the reactor's thread; `send` and
/// `close` may be called from any. Handlers run on the reactor's thread, never within `dial` or `accept`;
/// `closed` is called exactly once, last. The reactor outlives it.
///
/// However much the peer sends, the reactor's timers and its other sessions get their turn after some
/// milliseconds, and what is sent within a turn leaves together at its end. Answers that the peer does not
/// take are kept up to a mark; above it the session reads nothing more until they have left.
///
/// Errors that `closed` gets by itself: kTimedOut (the handshake's deadline), kPermissionDenied (keys,
/// certificates), kUnavailable (nobody listens, versions differ, the peer refused), kNotFound (no such host),
/// kProtocol, and kPeerGone: the peer closed, its connection broke and none took its place, its machine was
/// silent for the keepalive time, or the peer itself for as long as it takes to be hung.
class Session : public std::enable_shared_from_this<Session> {
 public:
  struct Handlers {
    std::function<void(const SessionPeer&)> opened;

    /// Gets all messages after the handshake, Heartbeats included, but for those by which it goes on.
    std::function<void(wire::Message)> message;

    std::function<void(const Error&)> closed;

    /// Accepted and not open yet: the peer has begun TLS, and by a key has shown the right one. May be null.
    std::function<void()> answered = nullptr;

    /// The peer does not take the answers to what it sends, so nothing more of it is read until it does. May
    /// be null.
    std::function<void()> paused = nullptr;

    /// The peer's machine answers and the peer has not for so long, at least the keepalive time; 0: it does
    /// again. May be null.
    std::function<void(std::chrono::milliseconds)> slow = nullptr;

    /// Its connection broke, for this reason, and the peer may live; it goes on over another one. May be
    /// null.
    std::function<void(const Error&)> broken = nullptr;
    std::function<void(const PeerPath&)> resumed = nullptr;

    /// Asked: whether the peer's machine was heard of within this time over another connection with it. Then
    /// it is not gone, however many packets the session's own path loses. May be null.
    std::function<bool(std::chrono::milliseconds)> heard_within = nullptr;
  };

  /// Connects to host and port (a numeric address or a name) and shakes hands before `deadline`.
  static std::shared_ptr<Session> dial(Reactor& reactor, std::string host, std::uint16_t port,
                                       SessionConfig config, Handlers handlers,
                                       std::chrono::steady_clock::time_point deadline);

  /// Takes an accepted socket and shakes hands before `deadline`.
  static std::shared_ptr<Session> accept(Reactor& reactor, UniqueFd socket, SessionConfig config,
                                         Handlers handlers, std::chrono::steady_clock::time_point deadline);

  /// Queues a message, also before the session is open; ignored once closed or closing. Order is kept. A
  /// message over wire::kMaxFrameBytes closes the session.
  void send(const wire::Message& message);

  /// Sends what is queued (for at most the keepalive time), then closes; `closed` gets `reason`. From here on
  /// no more messages are given out.
  void close(Error reason);

  /// Closes now, on the reactor's thread: what is queued is lost.
  void drop(Error reason);

  /// From within `opened`: what comes from here on goes to these. Their own `opened` is not called.
  void hand_over(Handlers handlers);

  class Core;  // session_core.h
  explicit Session(std::shared_ptr<Core> core);

  /// Closes as kCancelled if it is not closed yet.
  ~Session();

 private:
  std::shared_ptr<Core> core_;
};

}  // namespace p2p::engine
