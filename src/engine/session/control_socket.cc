// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/control_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace p2p::engine {
namespace {

constexpr std::string_view kSecret = "EXPORTER-uccl-p2p-session";

/// Whatever breaks the control connection, the peer is out of reach.
Error broken(Error error) {
  error.code = ErrorCode::kPeerGone;
  return error;
}

std::string host_of(const Result<socket::Address>& end) { return end ? end->text() : std::string(); }

}  // namespace

Status ControlSocket::prepare(std::chrono::milliseconds timeout) {
  const int flags = fcntl(fd(), F_GETFL);
  if (flags < 0 || fcntl(fd(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return tl::unexpected(system_error("make a control connection non-blocking"));
  }
  if (!socket::local_address(fd())) return {};
  // Long timeouts are cut to what the option holds, in milliseconds.
  const auto most = std::chrono::milliseconds(std::int64_t{1} << 30);
  return socket::tune_stream(fd(), {.user_timeout = std::clamp(timeout, std::chrono::milliseconds(1), most)});
}

Status ControlSocket::start_tls(std::shared_ptr<const crypto::Credentials> credentials,
                                crypto::Tls::Side side) {
  auto tls = crypto::Tls::start(std::move(credentials), side);
  if (!tls) return tl::unexpected(std::move(tls).error());
  Bytes before;
  for (; !frames_.empty(); drop_first()) {
    const Bytes& bytes = frames_.front().bytes;
    before.insert(before.end(), bytes.begin() + static_cast<std::ptrdiff_t>(sent_), bytes.end());
    sent_ = 0;
  }
  MutexLock lock(mutex_);
  tls_ = std::move(*tls);
  tls_->outgoing().insert(tls_->outgoing().begin(), before.begin(), before.end());
  tls_on_ = true;
  return {};
}

Result<std::optional<ControlSocket::Sealed>> ControlSocket::sealed(ByteView context) {
  MutexLock lock(mutex_);
  if (!tls_ || !tls_->established()) return std::nullopt;
  const auto secret = tls_->secret(kSecret, context);
  if (!secret) return tl::unexpected(secret.error());
  return Sealed{tls_->peer(), *secret};
}

bool ControlSocket::tls_answered() const {
  MutexLock lock(mutex_);
  return tls_ && tls_->answered();
}

bool ControlSocket::left_over() const {
  if (!tls_on_) return false;
  MutexLock lock(mutex_);
  return !tls_->outgoing().empty();
}

void ControlSocket::drop_first() {
  if (frames_.front().answer) answers_ -= frames_.front().bytes.size();
  frames_.pop_front();
}

Result<std::size_t> ControlSocket::flush_clear() {
  constexpr std::size_t kMostPieces = 64;
  std::size_t total = 0;
  while (!frames_.empty()) {
    std::array<iovec, kMostPieces> items{};
    const std::size_t count = std::min(frames_.size(), items.size());
    for (std::size_t i = 0; i < count; ++i) items[i] = {frames_[i].bytes.data(), frames_[i].bytes.size()};
    items[0] = {frames_[0].bytes.data() + sent_, frames_[0].bytes.size() - sent_};
    const Result<socket::Moved> moved = socket::try_send(fd(), std::span(items).first(count));
    if (!moved) return tl::unexpected(broken(moved.error()));
    total += moved->bytes;
    sent_ += moved->bytes;
    while (!frames_.empty() && sent_ >= frames_.front().bytes.size()) {
      sent_ -= frames_.front().bytes.size();
      drop_first();
    }
    if (moved->blocked) break;
  }
  return total;
}

/// Seals no more than leaves soon, so that what is counted as waiting still is.
Result<std::size_t> ControlSocket::flush_sealed() {
  constexpr std::size_t kGather = std::size_t{64} << 10;
  MutexLock lock(mutex_);
  std::size_t total = 0;
  do {
    while (!frames_.empty() && tls_->outgoing().size() < kGather && !tls_failed_) {
      if (Status sealed = tls_->seal(frames_.front().bytes); !sealed) return tl::unexpected(sealed.error());
      drop_first();
    }
    const auto sent = flush_outgoing(*tls_);
    if (!sent) return sent;
    total += *sent;
  } while (tls_->outgoing().empty() && !frames_.empty() && !tls_failed_);
  return total;
}

Result<std::size_t> ControlSocket::flush_outgoing(crypto::Tls& tls) const {
  Bytes& bytes = tls.outgoing();
  std::size_t sent = 0;
  while (sent != bytes.size()) {
    const Result<socket::Moved> moved = socket::try_send(fd(), ByteView(bytes).subspan(sent));
    if (!moved) return tl::unexpected(broken(moved.error()));
    sent += moved->bytes;
    if (moved->blocked) break;
  }
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(sent));
  return sent;
}

std::size_t ControlSocket::send_now(ByteView bytes) {
  if (!tls_on_) {
    const Result<socket::Moved> moved = socket::try_send(fd(), bytes);
    return moved ? moved->bytes : 0;
  }
  MutexLock lock(mutex_);
  if (!tls_->seal(bytes)) return 0;
  (void)flush_outgoing(*tls_);
  return bytes.size();
}

Result<ControlSocket::Received> ControlSocket::receive(wire::FrameReader& reader) {
  std::array<std::byte, std::size_t{64} << 10> buffer;  // filled by try_receive
  for (;;) {
    const Result<socket::Moved> moved = socket::try_receive(fd(), buffer);
    if (!moved) return tl::unexpected(broken(moved.error()));
    const bool interrupted = moved->bytes == 0 && !moved->blocked && !moved->ended;
    if (interrupted) continue;
    const Received received{moved->bytes, moved->ended};
    const ByteView came(buffer.data(), moved->bytes);
    if (!tls_on_) {
      reader.feed(came);
      return received;
    }
    if (tls_failed_) return received;
    Bytes clear;
    MutexLock lock(mutex_);
    if (Status taken = tls_->take(came, clear); !taken) {
      tls_failed_ = true;
      while (!frames_.empty()) drop_first();
      return tl::unexpected(taken.error());
    }
    reader.feed(clear);
    return received;
  }
}

socket::Answers ControlSocket::unacknowledged() const {
  return socket::answers_of(fd()).value_or(socket::Answers{});
}

void ControlSocket::finish_sending() { shutdown(fd(), SHUT_WR); }

PeerPath ControlSocket::path() const {
  return {host_of(socket::local_address(fd())), host_of(socket::peer_address(fd())), peer_port()};
}

std::uint16_t ControlSocket::peer_port() const {
  const auto end = socket::peer_address(fd());
  return end ? end->port() : 0;
}

std::string ControlSocket::peer() const {
  const auto end = socket::peer_address(fd());
  return end ? end->describe() : "an unnamed peer";
}

}  // namespace p2p::engine
