// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/socket.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/error.h"

namespace p2p::socket {
namespace {

Status set_option(int fd, int level, int option, int value, const char* name) {
  if (::setsockopt(fd, level, option, &value, sizeof value) == 0) return {};
  return tl::unexpected(system_error(fmt::format("set {} to {}", name, value)));
}

// A first probe after a third of the time, and as many more as fit; the system counts in seconds.
Status keep_alive(int fd, std::chrono::milliseconds silence) {
  const auto third = std::max<std::int64_t>(1, silence.count() / 3000);
  const auto probes = std::clamp<std::int64_t>(silence.count() / 1000 / third - 1, 1, 2);
  Status status = set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
  if (status) status = set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(third), "TCP_KEEPIDLE");
  if (status) status = set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, static_cast<int>(third), "TCP_KEEPINTVL");
  if (status) status = set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, static_cast<int>(probes), "TCP_KEEPCNT");
  return status;
}

// False with errno set: not a TCP socket.
bool ask_kernel(int fd, tcp_info& info) {
  socklen_t size = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0;
}

// What goes again where no route is left does not leave this host, and the system does not count it as sent.
// An attempt that left is younger than the interval to the next one. If none has left, what was sent before
// them is older than all intervals so far, of which each was twice the one before.
void add_failed_attempts(const tcp_info& info, Answers& answers) {
  if (answers.awaited || info.tcpi_unacked == 0 || info.tcpi_backoff == 0) return;
  const std::uint64_t unsent = std::uint64_t{info.tcpi_last_data_sent} * 1000;  // microseconds, like the next
  const std::uint64_t interval = info.tcpi_rto;
  answers.awaited = unsent > interval;
  answers.unsure = !answers.awaited && unsent > interval - (interval >> info.tcpi_backoff);
}

Result<UniqueFd> open_stream(const Address& address) {
  UniqueFd fd = UniqueFd::of(::socket, address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (!fd) return tl::unexpected(system_error("open a TCP socket"));
  return fd;
}

Status bind_to(int fd, const Address& address) {
  if (::bind(fd, address.raw(), address.raw_size()) == 0) return {};
  const int number = errno;
  Error error = system_error(fmt::format("bind to {}", address.describe()), number);
  if (number == EADDRINUSE) error.code = ErrorCode::kUnavailable;
  return tl::unexpected(std::move(error));
}

// Reno is the one that every user may choose.
void send_unpaced(int fd) {
  constexpr std::string_view kUnpaced = "reno";
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kUnpaced.data(), kUnpaced.size());
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
  UniqueFd fd = UniqueFd::of(::accept4, listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
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
  if (::poll(&waiting, 1, 0) <= 0) return false;  // a signal of the program's: later
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

Result<Answers> answers_of(int fd) {
  tcp_info info{};
  int waiting = 0;
  if (!ask_kernel(fd, info) || ::ioctl(fd, SIOCOUTQNSD, &waiting) != 0) {
    return tl::unexpected(system_error("ask what a TCP stream waits for"));
  }
  // What a host with full buffers does not take goes again at ever longer intervals, in between which it has
  // nothing to answer. Nor does it answer each probe: at most one in half a second (tcp_invalid_ratelimit).
  const bool sent_since = info.tcpi_last_data_sent < info.tcpi_last_ack_recv;
  Answers answers{.awaited = info.tcpi_probes > 1 || (info.tcpi_unacked != 0 && sent_since),
                  .waiting = waiting != 0 || info.tcpi_unacked != 0,
                  .last = std::chrono::milliseconds(info.tcpi_last_ack_recv)};
  add_failed_attempts(info, answers);
  return answers;
}

bool heard_within(int fd, std::chrono::milliseconds time) {
  tcp_info info{};
  return ask_kernel(fd, info) && std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv) <= time.count();
}

Status tune_stream(int fd, const StreamOptions& options) {
  Status status = set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  if (status && options.user_timeout.count() > 0) {
    status = set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(options.user_timeout.count()),
                        "TCP_USER_TIMEOUT");
  }
  if (status && options.keepalive.count() > 0) status = keep_alive(fd, options.keepalive);
  if (status && options.buffer_bytes > 0) {
    status = set_option(fd, SOL_SOCKET, SO_SNDBUF, options.buffer_bytes, "SO_SNDBUF");
    if (status) status = set_option(fd, SOL_SOCKET, SO_RCVBUF, options.buffer_bytes, "SO_RCVBUF");
  }
  if (options.within_host) send_unpaced(fd);
  return status;
}

bool is_broken(int fd) {
  tcp_info info{};
  return ask_kernel(fd, info) && info.tcpi_state == TCP_CLOSE;
}

void set_receive_low_water(int fd, int bytes) {
  (void)::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

void limit_unsent(int fd, int bytes) {
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes);
}

bool allow_zerocopy(int fd) { return set_option(fd, SOL_SOCKET, SO_ZEROCOPY, 1, "SO_ZEROCOPY").has_value(); }

void discard_at_close(int fd) {
  const linger now{.l_onoff = 1, .l_linger = 0};
  (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

bool readable_now(int fd) {
  pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, 0) != 0;
}

}  // namespace p2p::socket
