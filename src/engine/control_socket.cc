// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/control_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace p2p::engine {
namespace {

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

Result<std::size_t> ControlSocket::flush() {
  constexpr std::size_t kMostPieces = 64;
  std::size_t total = 0;
  while (!frames_.empty()) {
    std::array<iovec, kMostPieces> pieces{};
    const std::size_t count = std::min(frames_.size(), pieces.size());
    for (std::size_t i = 0; i < count; ++i) pieces[i] = {frames_[i].bytes.data(), frames_[i].bytes.size()};
    pieces[0] = {frames_[0].bytes.data() + sent_, frames_[0].bytes.size() - sent_};
    const Result<socket::Moved> moved = socket::try_send(fd(), std::span(pieces).first(count));
    if (!moved) return tl::unexpected(broken(moved.error()));
    total += moved->bytes;
    sent_ += moved->bytes;
    while (!frames_.empty() && sent_ >= frames_.front().bytes.size()) {
      sent_ -= frames_.front().bytes.size();
      if (frames_.front().answer) answers_ -= frames_.front().bytes.size();
      frames_.pop_front();
    }
    if (moved->blocked) break;
  }
  return total;
}

std::size_t ControlSocket::send_now(ByteView bytes) const {
  const Result<socket::Moved> moved = socket::try_send(fd(), bytes);
  return moved ? moved->bytes : 0;
}

Result<ControlSocket::Received> ControlSocket::receive(wire::FrameReader& reader) {
  std::array<std::byte, std::size_t{64} << 10> buffer;  // filled by try_receive
  for (;;) {
    const Result<socket::Moved> moved = socket::try_receive(fd(), buffer);
    if (!moved) return tl::unexpected(broken(moved.error()));
    const bool interrupted = moved->bytes == 0 && !moved->blocked && !moved->ended;
    if (interrupted) continue;
    reader.feed(ByteView(buffer.data(), moved->bytes));
    return Received{moved->bytes, moved->ended};
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
