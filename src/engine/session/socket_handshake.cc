// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/socket_handshake.h"

#include <utility>

#include "base/error.h"
#include "drivers/crypto/crypto.h"
#include "wire/encode.h"

namespace p2p::engine {

SocketHandshake::SocketHandshake(Handshake::Setup setup,
                                 std::shared_ptr<const crypto::Credentials> credentials,
                                 ControlSocket& socket, wire::FrameReader& reader)
    : handshake_(std::move(setup)), credentials_(std::move(credentials)), socket_(socket), reader_(reader) {}

Result<SocketHandshake> SocketHandshake::start(const SessionConfig& config, Role role, ControlSocket& socket,
                                               wire::FrameReader& reader) {
  Handshake::Setup setup{
      .role = role, .hello = {}, .introduction = config.introduction, .allow = config.allow};
  setup.encryption = config.encryption;
  setup.hello.incarnation = config.incarnation;
  if (const auto& credentials = config.credentials) {
    const auto proof = credentials->by_key() ? wire::Proof::kKey : wire::Proof::kCertificate;
    setup.hello.proof = static_cast<std::uint8_t>(proof);
  }
  if (Status drawn = crypto::random_bytes(setup.hello.nonce); !drawn) return tl::unexpected(drawn.error());
  SocketHandshake begun(std::move(setup), config.credentials, socket, reader);
  for (const wire::Message& message : begun.handshake_.start().send) socket.push(wire::encode(message));
  return begun;
}

SocketHandshake::Outcome SocketHandshake::take(wire::Message message) {
  return follow(handshake_.take(std::move(message)));
}

SocketHandshake::Outcome SocketHandshake::follow(Handshake::Step step) {
  for (const wire::Message& each : step.send) socket_.push(wire::encode(each));
  if (step.error) return {.error = std::move(step.error), .told = !step.send.empty()};
  if (step.seal) {
    if (Status started = start_tls(); !started) return {.error = std::move(started).error()};
  }
  return {.done = handshake_.done()};
}

Status SocketHandshake::start_tls() {
  if (reader_.buffered() != 0) {
    return fail(ErrorCode::kProtocol, "something other than TLS follows the peer's hello");
  }
  // The connector speaks first: the acceptor's hello has gone out before it can begin.
  const bool dials = handshake_.role() == Role::kConnector;
  return socket_.start_tls(credentials_, dials ? crypto::Tls::Side::kDials : crypto::Tls::Side::kAccepts);
}

/// Goes on once TLS says who the peer is.
SocketHandshake::Outcome SocketHandshake::look_at_tls() {
  auto sealed = socket_.sealed(handshake_.hellos());
  if (!sealed) return {.error = std::move(sealed).error()};
  if (!*sealed) return {};
  secret_ = (*sealed)->secret;
  return follow(handshake_.sealed(std::move((*sealed)->peer)));
}

SessionPeer SocketHandshake::peer() const {
  return {.incarnation = handshake_.peer_hello().incarnation,
          .introduction = handshake_.peer_introduction(),
          .identity = handshake_.peer_identity(),
          .secret = credentials_ ? secret_ : handshake_.hellos(),
          .path = socket_.path(),
          .port = socket_.peer_port(),
          .encrypts = handshake_.encrypts(),
          .version = handshake_.version()};
}

}  // namespace p2p::engine
