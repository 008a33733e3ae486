// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "softnet/socket.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <string_view>

#include "softnet/settings.h"

namespace softnet {
namespace {

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof value);
}

long outcome(long result) {
  if (result >= 0) return result;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : kLost;
}

}  // namespace

socklen_t address_size(const sockaddr_in6& address) {
  return address.sin6_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

UniqueFd make_socket(const sockaddr_in6& address) {
  return UniqueFd::of(::socket, address.sin6_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

void prepare_stream(int fd) {
  const auto timeout = static_cast<int>(settings().timeout.count());
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  const int interval = std::max(1, timeout / 4000);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, interval);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

void send_unpaced(int fd) {
  constexpr std::string_view kUnpaced = "reno";  // which every user may choose
  ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kUnpaced.data(), kUnpaced.size());
}

bool peer_is_silent(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  // One probe may just have left; a second goes out only where the first was not answered.
  const bool waits = info.tcpi_unacked != 0 || info.tcpi_probes > 1;
  return waits && std::chrono::milliseconds(info.tcpi_last_ack_recv) > settings().timeout;
}

long send_some(int fd, std::span<iovec> pieces, Follows follows) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  const int quiet = settings().habits.sigpipe ? 0 : MSG_NOSIGNAL;
  const int more = follows == Follows::kMore ? MSG_MORE : 0;
  return outcome(::sendmsg(fd, &message, MSG_DONTWAIT | quiet | more));
}

long splice_some(int pipe, int fd, std::size_t bytes) {
  if (settings().habits.sigpipe)
    return outcome(::splice(pipe, nullptr, fd, nullptr, bytes, SPLICE_F_NONBLOCK));
  // There is no flag like MSG_NOSIGNAL. A host that blocks the signal looks after it itself.
  sigset_t only, before;
  sigemptyset(&only);
  sigaddset(&only, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &only, &before);
  const ssize_t moved = ::splice(pipe, nullptr, fd, nullptr, bytes, SPLICE_F_NONBLOCK);
  const int error = errno;
  if (sigismember(&before, SIGPIPE) == 0) {
    // Also behind a part that was moved before the peer's end was noticed.
    const bool may_have_come = moved < 0 ? error != EAGAIN : static_cast<std::size_t>(moved) < bytes;
    const timespec now{};
    if (may_have_come) ::sigtimedwait(&only, nullptr, &now);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  errno = error;
  return outcome(moved);
}

long receive_some(int fd, std::span<iovec> pieces) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  const long result = ::recvmsg(fd, &message, MSG_DONTWAIT);
  if (result != 0) return outcome(result);
  errno = 0;
  return kLost;
}

std::span<iovec> advance(std::span<iovec> pieces, std::size_t moved) {
  while (!pieces.empty() && moved >= pieces.front().iov_len) {
    moved -= pieces.front().iov_len;
    pieces = pieces.subspan(1);
  }
  if (!pieces.empty()) {
    pieces.front().iov_base = static_cast<std::byte*>(pieces.front().iov_base) + moved;
    pieces.front().iov_len -= moved;
  }
  return pieces;
}

std::span<iovec> clip(std::span<iovec> pieces, std::size_t limit) {
  std::size_t count = 0;
  while (count < pieces.size() && limit != 0) {
    pieces[count].iov_len = std::min(pieces[count].iov_len, limit);
    limit -= pieces[count].iov_len;
    ++count;
  }
  return pieces.first(count);
}

}  // namespace softnet
