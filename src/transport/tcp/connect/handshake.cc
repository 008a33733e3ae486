// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/connect/handshake.h"

#include "base/error.h"
#include "drivers/socket/socket.h"

namespace p2p::tcp {
namespace {

constexpr std::uint32_t kMagic = StreamPort::kMagic;

static_assert(Greeting::kBytes - sizeof(Nonce) == StreamPort::kPrefixBytes);

void put_prefix(ByteWriter& writer) {
  writer.put(kMagic);
  writer.put(kHandshakeVersion);
}

Status take_prefix(ByteReader& reader) {
  if (reader.get<std::uint32_t>() == kMagic && reader.get<std::uint16_t>() == kHandshakeVersion) return {};
  return fail(ErrorCode::kProtocol, "no handshake of a tcp stream of version {}", kHandshakeVersion);
}

}  // namespace

Bytes Greeting::encode() const {
  Bytes bytes;
  ByteWriter writer(bytes);
  put_prefix(writer);
  writer.put(ByteView(token));
  writer.put(ByteView(nonce));
  return bytes;
}

Result<Greeting> Greeting::decode(ByteView bytes) {
  ByteReader reader(bytes);
  if (Status known = take_prefix(reader); !known) return tl::unexpected(known.error());
  Greeting greeting;
  take(reader, greeting.token);
  take(reader, greeting.nonce);
  if (!reader.ok()) return fail(ErrorCode::kProtocol, "a greeting of {} bytes", bytes.size());
  return greeting;
}

Bytes Answer::encode() const {
  Bytes bytes;
  ByteWriter writer(bytes);
  put_prefix(writer);
  writer.put(ByteView(nonce));
  writer.put(ByteView(proof));
  return bytes;
}

Result<Answer> Answer::decode(ByteView bytes) {
  ByteReader reader(bytes);
  if (Status known = take_prefix(reader); !known) return tl::unexpected(known.error());
  Answer answer;
  take(reader, answer.nonce);
  take(reader, answer.proof);
  if (!reader.ok()) return fail(ErrorCode::kProtocol, "an answer of {} bytes", bytes.size());
  return answer;
}

crypto::MutualProof proof_of(const Secret& secret, const Greeting& greeting, const Nonce& acceptor) {
  crypto::MutualProof proof("p2p tcp stream", secret);
  proof.bind(greeting.encode()).bind(acceptor);
  return proof;
}

Result<bool> MessageReader::receive(int fd) {
  while (have_ != bytes_.size()) {
    const Result<socket::Moved> moved = socket::try_receive(fd, std::span(bytes_).subspan(have_));
    if (!moved) return tl::unexpected(moved.error());
    if (moved->ended) return fail(ErrorCode::kPeerGone, "the peer closed the stream in the handshake");
    have_ += moved->bytes;
    if (moved->blocked) break;
  }
  return have_ == bytes_.size();
}

Status send_message(int fd, ByteView bytes) {
  const Result<socket::Moved> moved = socket::try_send(fd, bytes);
  if (!moved) return tl::unexpected(moved.error());
  if (moved->bytes == bytes.size()) return {};
  return fail(ErrorCode::kPeerGone, "the handshake's {} bytes do not fit into an empty socket", bytes.size());
}

}  // namespace p2p::tcp
