// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "base/unique_fd.h"
#include "drivers/socket/socket.h"
#include "engine/loop/reactor.h"
#include "engine/session/control_socket.h"
#include "p2p/result.h"
#include "transport/transport.h"
#include "wire/decode.h"
#include "wire/messages.h"

namespace p2p::engine {

/// One try to go on with a session over another connection. On the reactor's thread.
///
///     connector                      acceptor
///     Resume                    ->                   (token, attempt, nonce, proof)
///                               <-   ResumeAnswer    (known, nonce)
///     TLS                      <->   TLS             (if the session is within TLS; the key is made of its
///                                                     secret and of both nonces)
///     Resumed                   ->                   (proof, messages handled)
///                               <-   Resumed         (the session's, once it has let go of its old socket)
///
/// A proof is made of the session's secret and of what was said before, so that nobody who has heard another
/// attempt can repeat it. A Resume itself can be, as often as one likes: its number tells (ResumeAcceptor).
class ResumeAttempt : public std::enable_shared_from_this<ResumeAttempt> {
 public:
  /// What both sides know of the session.
  struct Terms {
    Role role = Role::kConnector;
    wire::SessionToken token{};
    std::array<std::byte, 32> secret{};
    bool sealed = false;  ///< the session is within TLS
    std::chrono::milliseconds hung{30000};
  };

  /// The peer is who it was.
  struct Proven {
    std::unique_ptr<ControlSocket> socket;
    wire::FrameReader reader;  ///< may have more
    std::uint32_t attempt = 0;
    std::uint64_t handled = 0;  ///< by the peer
    wire::Resumed answer{};     ///< the acceptor's, but for what it has handled
  };

  /// Called once, never before `start` returns. kNotFound: the peer's port does not know the session.
  using Done = std::function<void(Result<Proven>)>;

  ResumeAttempt(Reactor& reactor, const Terms& terms, UniqueFd socket);

  /// Acceptor: the number of the attempt whose Resume waits to be read from `socket`, and stays there.
  /// kPermissionDenied if whoever made it does not know the secret.
  static Result<std::uint32_t> peek(const Terms& terms, int socket);

  /// `attempt` and `handled` are said by a connector: its number of this attempt, and of the peer's messages.
  void start(std::uint32_t attempt, std::uint64_t handled, Done done);

  /// `done` is not called any more.
  void stop();

  /// What the peer's machine owes.
  socket::Answers unacknowledged() const { return socket_->unacknowledged(); }

 private:
  Status begin();
  void on_events(std::uint32_t events);
  Status receive();
  Status take(wire::Message message);
  Status take_hello(const wire::Resume& resume);
  Status take_answer(const wire::ResumeAnswer& answer);
  Status take_proof(const wire::Resumed& resumed);
  Status agree();
  Status look_at_tls();
  Status flush();
  static Status check(const Terms& terms, const wire::Resume& resume);
  std::array<std::byte, 32> digest(std::string_view label) const;
  void finish(Result<Proven> outcome);

  Reactor& reactor_;
  const Terms terms_;
  std::unique_ptr<ControlSocket> socket_;
  wire::FrameReader reader_;
  Done done_;
  std::uint64_t handled_ = 0;
  wire::Resume resume_;
  wire::ResumeAnswer answer_;
  bool agreed_ = false;   // both nonces are known
  bool sealing_ = false;  // TLS has begun, and has not said yet who the peer is
  std::optional<Proven> proven_;
};

}  // namespace p2p::engine
