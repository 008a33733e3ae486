// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "bootstrap.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "failure.h"

namespace tcpx::tool {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint32_t kMaxMessage = 1 << 20;

tl::unexpected<p2p::Error> fail_errno(const std::string& what) {
  return fail(p2p::ErrorCode::kSystem, fmt::format("{}: {}", what, std::generic_category().message(errno)));
}

/// False when the time is over.
bool wait_for(int fd, short events, Clock::time_point end) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return false;
    pollfd poll{fd, events, 0};
    const int ready = ::poll(&poll, 1, static_cast<int>(left));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const char* host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  if (::getaddrinfo(host, std::to_string(port).c_str(), &hints, &list) != 0) list = nullptr;
  return {list, &::freeaddrinfo};
}

int dial_one(const addrinfo& address, Clock::time_point end) {
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  int error = 0;
  socklen_t size = sizeof error;
  const bool started = ::connect(fd, address.ai_addr, address.ai_addrlen) == 0 || errno == EINPROGRESS;
  if (started && wait_for(fd, POLLOUT, end) && ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 &&
      error == 0) {
    return fd;
  }
  ::close(fd);
  return -1;
}

}  // namespace

p2p::Result<Bootstrap> Bootstrap::serve(std::uint16_t port, std::chrono::seconds timeout,
                                        const std::function<void()>& listening) {
  const int listener = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) return fail_errno("open a socket");
  const int on = 1, off = 0;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  ::setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  int fd = -1;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      ::listen(listener, 1) == 0) {
    listening();
    if (wait_for(listener, POLLIN, Clock::now() + timeout)) {
      fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    } else {
      errno = ETIMEDOUT;
    }
  }
  const int error = errno;
  ::close(listener);
  errno = error;
  if (fd < 0) return fail_errno(fmt::format("wait for a client on port {}", port));
  return Bootstrap(fd, timeout);
}

p2p::Result<Bootstrap> Bootstrap::dial(const std::string& host, std::uint16_t port,
                                       std::chrono::seconds timeout) {
  const Addresses addresses = resolve(host.c_str(), port, 0);
  if (!addresses)
    return fail(p2p::ErrorCode::kNotFound, fmt::format("{} is no address and no known name", host));
  const auto end = Clock::now() + timeout;
  // The server may start a moment later.
  while (Clock::now() < end) {
    for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
      if (const int fd = dial_one(*address, end); fd >= 0) return Bootstrap(fd, timeout);
    }
    ::poll(nullptr, 0, 50);
  }
  return fail(p2p::ErrorCode::kTimedOut, fmt::format("connect to {} port {}: nobody answers", host, port));
}

Bootstrap::Bootstrap(Bootstrap&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), timeout_(other.timeout_) {}

Bootstrap::~Bootstrap() {
  if (fd_ >= 0) ::close(fd_);
}

std::string Bootstrap::peer() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::getpeername(fd_, generic, &size) != 0 ||
      ::getnameinfo(generic, size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  std::string_view name = host.data();
  if (name.starts_with("::ffff:")) name.remove_prefix(7);  // IPv4 over the socket for both
  return fmt::format("{} port {}", name, port.data());
}

p2p::Status Bootstrap::move(std::byte* data, std::size_t size, bool out) const {
  const auto end = Clock::now() + timeout_;
  while (size != 0) {
    const ssize_t moved = out ? ::send(fd_, data, size, MSG_NOSIGNAL) : ::recv(fd_, data, size, 0);
    if (moved > 0) {
      data += moved;
      size -= static_cast<std::size_t>(moved);
      continue;
    }
    if (moved == 0) return fail(p2p::ErrorCode::kPeerGone, "bootstrap: the other side is gone");
    if (errno != EAGAIN && errno != EINTR) return fail_errno("bootstrap");
    if (!wait_for(fd_, out ? POLLOUT : POLLIN, end)) {
      return fail(p2p::ErrorCode::kTimedOut, fmt::format("bootstrap: silent for {} s", timeout_.count()));
    }
  }
  return {};
}

p2p::Status Bootstrap::send(std::span<const std::byte> message) const {
  auto size = static_cast<std::uint32_t>(message.size());
  if (message.size() > kMaxMessage)
    return fail(p2p::ErrorCode::kInvalidArgument, "bootstrap: message too long");
  if (auto sent = move(reinterpret_cast<std::byte*>(&size), sizeof size, true); !sent) return sent;
  return move(const_cast<std::byte*>(message.data()), message.size(), true);
}

p2p::Result<std::vector<std::byte>> Bootstrap::receive() const {
  std::uint32_t size = 0;
  if (auto got = move(reinterpret_cast<std::byte*>(&size), sizeof size, false); !got) {
    return tl::unexpected(got.error());
  }
  if (size > kMaxMessage)
    return fail(p2p::ErrorCode::kProtocol, "bootstrap: the other side is no tcpx program");
  std::vector<std::byte> message(size);
  if (auto got = move(message.data(), size, false); !got) return tl::unexpected(got.error());
  return message;
}

p2p::Status Bootstrap::send_text(const std::string& text) const {
  return send(std::as_bytes(std::span(text.data(), text.size())));
}

p2p::Result<std::string> Bootstrap::receive_text() const {
  const auto message = receive();
  if (!message) return tl::unexpected(message.error());
  return std::string(reinterpret_cast<const char*>(message->data()), message->size());
}

}  // namespace tcpx::tool
