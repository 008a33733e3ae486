// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "drivers/crypto/mutual_proof.h"
#include "p2p/result.h"
#include "transport/tcp/connect/channel_address.h"
#include "transport/transport.h"

/// What the two ends of a stream say before its first frame: the connector a greeting, the acceptor an answer
/// with its proof that it knows the session's secret, the connector its own proof. Byte tables in
/// docs/wire.md, section "Data streams".
namespace p2p::tcp {

using Clock = std::chrono::steady_clock;
using Nonce = std::array<std::byte, 32>;
using Secret = std::array<std::byte, 32>;

inline constexpr std::uint16_t kHandshakeVersion = 4;

/// Begins with the prefix of a StreamPort.
struct Greeting {
  static constexpr std::size_t kBytes = 6 + sizeof(Token) + sizeof(Nonce);
  Token token{};
  Nonce nonce{};  ///< the connector's

  Bytes encode() const;

  /// kProtocol if another protocol or version speaks; `bytes` is kBytes long.
  static Result<Greeting> decode(ByteView bytes);
};

struct Answer {
  static constexpr std::size_t kBytes = 6 + sizeof(Nonce) + sizeof(crypto::Digest);
  Nonce nonce{};  ///< the acceptor's
  crypto::Digest proof{};

  Bytes encode() const;
  static Result<Answer> decode(ByteView bytes);
};

/// What both sides prove. Its key is of this stream alone: where it is encrypted, both begin TLS with it.
crypto::MutualProof proof_of(const Secret& secret, const Greeting& greeting, const Nonce& acceptor);

/// One message of the handshake, of known length, as it comes in.
class MessageReader {
 public:
  explicit MessageReader(std::size_t bytes) : bytes_(bytes) {}

  /// True once it is complete; kPeerGone if the stream ends first. Takes no byte that lies behind it.
  Result<bool> receive(int fd);
  ByteView view() const { return bytes_; }

 private:
  Bytes bytes_;
  std::size_t have_ = 0;
};

/// Sends one message. They are far smaller than an empty socket's buffer.
Status send_message(int fd, ByteView bytes);

/// Fills `out` from what comes next.
template <std::size_t kSize>
void take(ByteReader& reader, std::array<std::byte, kSize>& out) {
  const ByteView bytes = reader.take(kSize);
  std::copy(bytes.begin(), bytes.end(), out.begin());
}

}  // namespace p2p::tcp
