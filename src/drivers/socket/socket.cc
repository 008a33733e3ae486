// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/socket.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <cstring>

#include "base/error.h"

namespace p2p::socket {
namespace {

Status set_option(int fd, int level, int option, int value, const char* name) {
  if (::setsockopt(fd, level, option, &value, sizeof value) == 0) return {};
  return tl::unexpected(system_error(fmt::format("set {} to {}", name, value)));
}

Result<UniqueFd> open_stream(const Address& address) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return tl::unexpected(system_error("open a TCP socket"));
  return fd;
}

Status bind_to(int fd, const Address& address) {
  if (::bind(fd, address.raw(), address.raw_size()) == 0) return {};
  return tl::unexpected(system_error(fmt::format("bind to {}", address.describe())));
}

bool would_block(int error_number) { return error_number == EAGAIN || error_number == EWOULDBLOCK; }

Result<Moved> outcome(ssize_t moved, std::size_t wanted, const char* what) {
  if (moved >= 0) {
    const auto bytes = static_cast<std::size_t>(moved);
    return Moved{.bytes = bytes, .blocked = bytes < wanted};
  }
  const int cause = errno;
  if (would_block(cause) || cause == EINTR) return Moved{.blocked = cause != EINTR};
  Error error = system_error(what, cause);
  if (cause == ECONNRESET || cause == EPIPE || cause == ETIMEDOUT || cause == EHOSTUNREACH) {
    error.code = ErrorCode::kPeerGone;
  }
  return tl::unexpected(std::move(error));
}

std::size_t total(std::span<const iovec> pieces) {
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

msghdr message_of(std::span<iovec> pieces) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  return message;
}

}  // namespace

Result<UniqueFd> open_listener(const Address& address, int backlog) {
  Result<UniqueFd> fd = open_stream(address);
  if (!fd) return fd;
  // A fixed port must be free again at once after a restart; with port 0 it changes nothing.
  Status status = set_option(fd->get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
  if (status && address.family() == AF_INET6) {
    status = set_option(fd->get(), IPPROTO_IPV6, IPV6_V6ONLY, 1, "IPV6_V6ONLY");
  }
  if (status) status = bind_to(fd->get(), address);
  if (!status) return tl::unexpected(status.error());
  if (::listen(fd->get(), backlog) != 0) {
    return tl::unexpected(system_error(fmt::format("listen on {}", address.describe())));
  }
  return fd;
}

Result<UniqueFd> try_accept(int listener) {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd || would_block(errno)) return fd;
  // Errors of the connection that was waiting, not of the listener.
  const bool passing = errno == ECONNABORTED || errno == EINTR || errno == EPROTO || errno == ENETDOWN ||
                       errno == EHOSTUNREACH || errno == ENETUNREACH || errno == ETIMEDOUT;
  if (passing) return fd;
  return tl::unexpected(system_error("accept a connection"));
}

Result<UniqueFd> start_dial(const Address& local, const Address& remote) {
  Result<UniqueFd> fd = open_stream(remote);
  if (!fd) return fd;
  Address source = local;
  source.set_port(0);
  // The system chooses the port at connect, where it may share one among many destinations.
  (void)set_option(fd->get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1, "IP_BIND_ADDRESS_NO_PORT");
  if (Status status = bind_to(fd->get(), source); !status) return tl::unexpected(status.error());
  if (::connect(fd->get(), remote.raw(), remote.raw_size()) != 0 && errno != EINPROGRESS) {
    return tl::unexpected(system_error(fmt::format("connect {} to {}", source.text(), remote.describe())));
  }
  return fd;
}

Result<bool> dial_finished(int fd) {
  pollfd waiting{.fd = fd, .events = POLLOUT, .revents = 0};
  if (::poll(&waiting, 1, 0) == 0) return false;
  int error_number = 0;
  socklen_t size = sizeof error_number;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error_number, &size) != 0) error_number = errno;
  if (error_number != 0) return tl::unexpected(system_error("connect", error_number));
  return true;
}

Result<Address> local_address(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    return tl::unexpected(system_error("ask for a socket's own address"));
  }
  return Address::from(reinterpret_cast<const sockaddr*>(&storage), size);
}

Result<Address> peer_address(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    return tl::unexpected(system_error("ask for a socket's peer address"));
  }
  return Address::from(reinterpret_cast<const sockaddr*>(&storage), size);
}

Status tune_stream(int fd, const StreamOptions& options) {
  Status status = set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  if (status && options.user_timeout.count() > 0) {
    status = set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(options.user_timeout.count()),
                        "TCP_USER_TIMEOUT");
  }
  if (status && options.buffer_bytes > 0) {
    status = set_option(fd, SOL_SOCKET, SO_SNDBUF, options.buffer_bytes, "SO_SNDBUF");
    if (status) status = set_option(fd, SOL_SOCKET, SO_RCVBUF, options.buffer_bytes, "SO_RCVBUF");
  }
  return status;
}

void set_receive_low_water(int fd, int bytes) {
  (void)::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

Result<Moved> try_receive(int fd, std::span<std::byte> into) {
  const ssize_t moved = ::recv(fd, into.data(), into.size(), MSG_DONTWAIT);
  if (moved == 0 && !into.empty()) return Moved{.ended = true};
  return outcome(moved, into.size(), "receive from a TCP stream");
}

Result<Moved> try_receive(int fd, std::span<iovec> into) {
  const std::size_t wanted = total(into);
  msghdr message = message_of(into);
  const ssize_t moved = ::recvmsg(fd, &message, MSG_DONTWAIT);
  if (moved == 0 && wanted != 0) return Moved{.ended = true};
  return outcome(moved, wanted, "receive from a TCP stream");
}

Result<Moved> try_send(int fd, std::span<const std::byte> bytes, int flags) {
  const ssize_t moved = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT | flags);
  return outcome(moved, bytes.size(), "send on a TCP stream");
}

Result<Moved> try_send(int fd, std::span<iovec> pieces, int flags) {
  msghdr message = message_of(pieces);
  ssize_t moved = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT | flags);
  bool zerocopy = (flags & MSG_ZEROCOPY) != 0;
  if (moved < 0 && errno == ENOBUFS && zerocopy) {
    zerocopy = false;
    moved = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT | (flags & ~MSG_ZEROCOPY));
  }
  Result<Moved> result = outcome(moved, total(pieces), "send on a TCP stream");
  if (result) result->zerocopy = zerocopy && result->bytes != 0;
  return result;
}

bool allow_zerocopy(int fd) { return set_option(fd, SOL_SOCKET, SO_ZEROCOPY, 1, "SO_ZEROCOPY").has_value(); }

Result<ZerocopyRange> next_zerocopy_range(int fd) {
  alignas(cmsghdr) char control[256];
  msghdr message{};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
    if (would_block(errno) || errno == EINTR) return ZerocopyRange{};
    return tl::unexpected(system_error("read a TCP stream's error queue"));
  }
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    const bool of_interest = (part->cmsg_level == SOL_IP && part->cmsg_type == IP_RECVERR) ||
                             (part->cmsg_level == SOL_IPV6 && part->cmsg_type == IPV6_RECVERR);
    if (!of_interest) continue;
    sock_extended_err report{};
    std::memcpy(&report, CMSG_DATA(part), sizeof report);
    if (report.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
    return ZerocopyRange{.first = report.ee_info,
                         .count = std::uint64_t{report.ee_data - report.ee_info} + 1,
                         .copied = (report.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0};
  }
  return ZerocopyRange{};
}

void discard_at_close(int fd) {
  const linger now{.l_onoff = 1, .l_linger = 0};
  (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

bool readable_now(int fd) {
  pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, 0) != 0;
}

}  // namespace p2p::socket
