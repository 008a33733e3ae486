// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/control_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace p2p::engine {
namespace {

/// Host and port of one end, numeric; empty for sockets without.
struct End {
  std::string host;
  std::uint16_t port = 0;
};

using NameOf = int (*)(int, sockaddr*, socklen_t*);

End end_of(int fd, NameOf name_of) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (name_of(fd, address, &size) != 0) return {};
  if (storage.ss_family != AF_INET && storage.ss_family != AF_INET6) return {};
  std::array<char, NI_MAXHOST> host{};
  if (getnameinfo(address, size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  End end{host.data(), 0};
  if (storage.ss_family == AF_INET) {
    end.port = ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port);
    return end;
  }
  end.port = ntohs(reinterpret_cast<const sockaddr_in6*>(address)->sin6_port);
  // An IPv4 peer of a listener for both: its IPv4 form is what interfaces are found by.
  constexpr std::string_view kMapped = "::ffff:";
  if (end.host.starts_with(kMapped) && end.host.find('.') != std::string::npos) {
    end.host.erase(0, kMapped.size());
  }
  return end;
}

Error broken(std::string_view what) {
  Error error = system_error(what);
  error.code = ErrorCode::kPeerGone;
  return error;
}

bool try_later() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

Status ControlSocket::prepare(std::chrono::milliseconds timeout) {
  const int flags = fcntl(fd(), F_GETFL);
  if (flags < 0 || fcntl(fd(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return tl::unexpected(system_error("make a control connection non-blocking"));
  }
  int domain = 0;
  socklen_t size = sizeof domain;
  if (getsockopt(fd(), SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) {
    return tl::unexpected(system_error("ask a control connection for its kind"));
  }
  if (domain != AF_INET && domain != AF_INET6) return {};
  const int on = 1;
  const auto milliseconds =
      static_cast<unsigned>(std::clamp<std::int64_t>(timeout.count(), 1, std::int64_t{1} << 30));
  if (setsockopt(fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
      setsockopt(fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds) != 0) {
    return tl::unexpected(system_error("set a control connection's options"));
  }
  return {};
}

Result<std::size_t> ControlSocket::flush() {
  constexpr std::size_t kMostPieces = 64;
  std::size_t total = 0;
  while (!frames_.empty()) {
    std::array<iovec, kMostPieces> pieces{};
    const std::size_t count = std::min(frames_.size(), pieces.size());
    for (std::size_t i = 0; i < count; ++i) pieces[i] = {frames_[i].data(), frames_[i].size()};
    pieces[0] = {frames_[0].data() + sent_, frames_[0].size() - sent_};
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    const ssize_t written = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && try_later()) break;
    if (written < 0) return tl::unexpected(broken("send to the peer"));
    total += static_cast<std::size_t>(written);
    sent_ += static_cast<std::size_t>(written);
    while (!frames_.empty() && sent_ >= frames_.front().size()) {
      sent_ -= frames_.front().size();
      frames_.pop_front();
    }
  }
  return total;
}

std::size_t ControlSocket::send_now(ByteView bytes) const {
  const ssize_t sent = send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent > 0 ? static_cast<std::size_t>(sent) : 0;
}

Result<ControlSocket::Received> ControlSocket::receive(wire::FrameReader& reader) {
  std::array<std::byte, std::size_t{64} << 10> buffer;  // filled by recv
  for (;;) {
    const ssize_t got = recv(fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && try_later()) return Received{};
    if (got < 0) return tl::unexpected(broken("receive from the peer"));
    const auto bytes = static_cast<std::size_t>(got);
    reader.feed(ByteView(buffer.data(), bytes));
    return Received{bytes, bytes == 0};
  }
}

void ControlSocket::finish_sending() { shutdown(fd(), SHUT_WR); }

PeerPath ControlSocket::path() const {
  return {end_of(fd(), getsockname).host, end_of(fd(), getpeername).host};
}

std::uint16_t ControlSocket::peer_port() const { return end_of(fd(), getpeername).port; }

std::string ControlSocket::peer() const {
  const End end = end_of(fd(), getpeername);
  if (end.host.empty()) return "an unnamed peer";
  const bool v6 = end.host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", end.host, end.port) : fmt::format("{}:{}", end.host, end.port);
}

}  // namespace p2p::engine
