// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "drivers/crypto/credentials.h"
#include "engine/session/control_socket.h"
#include "engine/session/handshake.h"
#include "engine/session/session.h"
#include "p2p/result.h"
#include "wire/decode.h"
#include "wire/messages.h"

namespace p2p::engine {

/// The handshake of one session over its socket: sends what Handshake says, and starts TLS where there are
/// keys. Whoever owns it reads, and flushes the socket. One thread.
class SocketHandshake {
 public:
  struct Outcome {
    bool done = false;           ///< each side knows the other
    std::optional<Error> error;  ///< it has failed
    bool told = false;           ///< and the peer is told: what waits must leave before the socket is closed
  };

  /// Speaks first, if that is this side's part. The socket and the reader outlive it.
  static Result<SocketHandshake> start(const SessionConfig& config, Role role, ControlSocket& socket,
                                       wire::FrameReader& reader);

  Outcome take(wire::Message message);

  /// TLS was to start and has not said yet who the peer is.
  bool sealing() const { return handshake_.sealing(); }

  /// While it is sealing and something has come.
  Outcome look_at_tls();

  /// Longest frame to accept now.
  std::size_t max_frame_bytes() const { return handshake_.max_frame_bytes(); }

  /// What is awaited, for errors: "the peer's hello".
  std::string_view awaits() const { return handshake_.awaits(); }

  /// Once done.
  SessionPeer peer() const;

 private:
  SocketHandshake(Handshake::Setup setup, std::shared_ptr<const crypto::Credentials> credentials,
                  ControlSocket& socket, wire::FrameReader& reader);
  Outcome follow(Handshake::Step step);
  Status start_tls();

  Handshake handshake_;
  std::shared_ptr<const crypto::Credentials> credentials_;
  ControlSocket& socket_;
  wire::FrameReader& reader_;
  std::array<std::byte, 32> secret_{};
};

}  // namespace p2p::engine
