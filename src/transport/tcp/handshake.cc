// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/handshake.h"

#include <sys/epoll.h>

#include <algorithm>

#include "base/error.h"
#include "drivers/crypto/crypto.h"
#include "drivers/socket/socket.h"

namespace p2p::tcp {
namespace {

constexpr std::uint32_t kMagic = 0x74703270;  // "p2pt"
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kPrefixBytes = sizeof kMagic + sizeof kVersion;
constexpr std::size_t kGreetingBytes = kPrefixBytes + sizeof(Token) + sizeof(Nonce);
constexpr std::size_t kAnswerBytes = kPrefixBytes + sizeof(Nonce) + sizeof(crypto::Digest);
constexpr std::size_t kProofBytes = sizeof(crypto::Digest);

constexpr std::size_t kMaxPending = 8;
constexpr std::chrono::seconds kPendingTime{2};
constexpr int kAcceptsPerCall = 16;
constexpr int kBacklog = 64;

enum class Side { kAcceptor, kConnector };

// What a side says to prove the secret: its role is in it, so that no proof can be sent back.
crypto::Digest proof(Side side, const Secret& secret, const Token& token, const Nonce& connector,
                     const Nonce& acceptor) {
  Bytes message;
  ByteWriter writer(message);
  writer.put(as_bytes(side == Side::kAcceptor ? "p2p tcp acceptor" : "p2p tcp connector"));
  writer.put(kVersion);
  writer.put(ByteView(token));
  writer.put(ByteView(connector));
  writer.put(ByteView(acceptor));
  return crypto::hmac_sha256(secret, message);
}

void put_prefix(ByteWriter& writer) {
  writer.put(kMagic);
  writer.put(kVersion);
}

bool take_prefix(ByteReader& reader) {
  return reader.get<std::uint32_t>() == kMagic && reader.get<std::uint16_t>() == kVersion;
}

// The messages are far smaller than an empty socket's buffer.
Status send_all(int fd, ByteView bytes) {
  const Result<socket::Moved> moved = socket::try_send(fd, bytes);
  if (!moved) return tl::unexpected(moved.error());
  if (moved->bytes == bytes.size()) return {};
  return fail(ErrorCode::kPeerGone, "the handshake's {} bytes do not fit into an empty socket", bytes.size());
}

template <std::size_t kSize>
void take(ByteReader& reader, std::array<std::byte, kSize>& out) {
  const ByteView bytes = reader.take(kSize);
  std::copy(bytes.begin(), bytes.end(), out.begin());
}

}  // namespace

Bytes ChannelAddress::encode() const {
  std::string text = address.text();
  text.resize(std::min(text.size(), text.find('%')));  // an interface's name means nothing elsewhere
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.put(kVersion);
  writer.put(address.port());
  writer.put(ByteView(token));
  writer.put(static_cast<std::uint8_t>(text.size()));
  writer.put(as_bytes(text));
  return bytes;
}

Result<ChannelAddress> ChannelAddress::decode(ByteView bytes) {
  ByteReader reader(bytes);
  const auto version = reader.get<std::uint16_t>();
  const auto port = reader.get<std::uint16_t>();
  ChannelAddress result;
  take(reader, result.token);
  const std::string text = to_string(reader.take(reader.get<std::uint8_t>()));
  if (!reader.ok() || reader.left() != 0 || version != kVersion) {
    return fail(ErrorCode::kProtocol, "{} bytes are no address of a tcp channel of version {}", bytes.size(),
                kVersion);
  }
  Result<socket::Address> address = socket::Address::parse(text, port);
  if (!address) return tl::unexpected(Error{ErrorCode::kProtocol, address.error().message});
  result.address = *address;
  return result;
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

Result<Acceptor> Acceptor::listen(const socket::Address& address, const Secret& secret,
                                  socket::PollSet& polls) {
  Acceptor acceptor(secret, polls);
  Result<UniqueFd> listener = socket::open_listener(address, kBacklog);
  if (!listener) return tl::unexpected(listener.error());
  const Result<socket::Address> bound = socket::local_address(listener->get());
  if (!bound) return tl::unexpected(bound.error());
  acceptor.address_.address = *bound;
  if (Status status = crypto::random_bytes(acceptor.address_.token); !status) {
    return tl::unexpected(status.error());
  }
  if (Status status = polls.add(listener->get(), EPOLLIN); !status) return tl::unexpected(status.error());
  acceptor.listener_ = std::move(*listener);
  return acceptor;
}

Result<UniqueFd> Acceptor::advance() {
  if (Status status = take_waiting(); !status) return tl::unexpected(status.error());
  const Clock::time_point now = Clock::now();
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    const Result<bool> proven = advance(*pending);
    if (proven && *proven) {
      UniqueFd fd = std::move(pending->fd);
      polls_->remove(fd.get());
      pending_.clear();
      listener_.reset();
      return fd;
    }
    // Whoever fails was a stranger or has died: the rightful peer may still come.
    pending = proven && now < pending->deadline ? pending + 1 : pending_.erase(pending);
  }
  return UniqueFd();
}

Status Acceptor::take_waiting() {
  for (int i = 0; i != kAcceptsPerCall; ++i) {
    Result<UniqueFd> fd = socket::try_accept(listener_.get());
    if (!fd) return tl::unexpected(fd.error());
    if (!*fd) return {};
    if (pending_.size() == kMaxPending) make_room();
    if (Status status = polls_->add(fd->get(), EPOLLIN); !status) return status;
    pending_.push_back({.fd = std::move(*fd),
                        .deadline = Clock::now() + kPendingTime,
                        .message = MessageReader(kGreetingBytes)});
  }
  return {};
}

// The eldest goes, one that does not know the token before one that does.
void Acceptor::make_room() {
  const auto stranger = std::find_if(pending_.begin(), pending_.end(),
                                     [](const Pending& pending) { return !pending.knows_token; });
  pending_.erase(stranger == pending_.end() ? pending_.begin() : stranger);
}

// True once the peer is proven; an error drops it.
Result<bool> Acceptor::advance(Pending& pending) {
  while (true) {
    const Result<bool> complete = pending.message.receive(pending.fd.get());
    if (!complete || !*complete) return complete;
    if (pending.knows_token) {
      const crypto::Digest expected =
          proof(Side::kConnector, secret_, address_.token, pending.peer_nonce, pending.nonce);
      if (crypto::equal(expected, pending.message.view())) return true;
      return fail(ErrorCode::kPermissionDenied, "a stranger does not know the secret");
    }
    if (Status status = answer(pending); !status) return tl::unexpected(status.error());
  }
}

Status Acceptor::answer(Pending& pending) {
  ByteReader reader(pending.message.view());
  Token token{};
  const bool known = take_prefix(reader);
  take(reader, token);
  take(reader, pending.peer_nonce);
  if (!known || !crypto::equal(token, address_.token)) {
    return fail(ErrorCode::kPermissionDenied, "a stranger does not know the token");
  }
  if (Status status = crypto::random_bytes(pending.nonce); !status) return status;
  Bytes bytes;
  ByteWriter writer(bytes);
  put_prefix(writer);
  writer.put(ByteView(pending.nonce));
  writer.put(ByteView(proof(Side::kAcceptor, secret_, token, pending.peer_nonce, pending.nonce)));
  pending.knows_token = true;
  pending.message = MessageReader(kProofBytes);
  return send_all(pending.fd.get(), bytes);
}

Clock::time_point Acceptor::next_deadline() const {
  Clock::time_point next = Clock::time_point::max();
  for (const Pending& pending : pending_) next = std::min(next, pending.deadline);
  return next;
}

Dialer::Dialer(const ChannelAddress& peer, const Secret& secret, socket::PollSet& polls)
    : peer_(peer), secret_(secret), polls_(&polls), message_(kAnswerBytes) {}

Result<Dialer> Dialer::dial(const socket::Address& local, const ChannelAddress& peer, const Secret& secret,
                            socket::PollSet& polls) {
  Dialer dialer(peer, secret, polls);
  if (Status status = crypto::random_bytes(dialer.nonce_); !status) return tl::unexpected(status.error());
  Result<UniqueFd> fd = socket::start_dial(local, peer.address);
  if (!fd) return tl::unexpected(fd.error());
  if (Status status = polls.add(fd->get(), EPOLLOUT); !status) return tl::unexpected(status.error());
  dialer.fd_ = std::move(*fd);
  return dialer;
}

Result<UniqueFd> Dialer::advance() {
  if (!connected_) {
    const Result<bool> finished = socket::dial_finished(fd_.get());
    if (!finished) return tl::unexpected(finished.error());
    if (!*finished) return UniqueFd();
    connected_ = true;
    polls_->change(fd_.get(), EPOLLIN);
    if (Status status = greet(); !status) return tl::unexpected(status.error());
  }
  const Result<bool> complete = message_.receive(fd_.get());
  if (!complete) return tl::unexpected(complete.error());
  if (!*complete) return UniqueFd();

  ByteReader reader(message_.view());
  Nonce theirs{};
  crypto::Digest mac{};
  const bool known = take_prefix(reader);
  take(reader, theirs);
  take(reader, mac);
  if (!known || !crypto::equal(mac, proof(Side::kAcceptor, secret_, peer_.token, nonce_, theirs))) {
    return fail(ErrorCode::kPermissionDenied, "{} does not know the secret", peer_.address.describe());
  }
  const crypto::Digest mine = proof(Side::kConnector, secret_, peer_.token, nonce_, theirs);
  if (Status status = send_all(fd_.get(), mine); !status) return tl::unexpected(status.error());
  polls_->remove(fd_.get());
  return std::move(fd_);
}

Status Dialer::greet() {
  Bytes bytes;
  ByteWriter writer(bytes);
  put_prefix(writer);
  writer.put(ByteView(peer_.token));
  writer.put(ByteView(nonce_));
  return send_all(fd_.get(), bytes);
}

}  // namespace p2p::tcp
