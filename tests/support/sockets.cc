// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace p2p::testing {
namespace {

using Clock = std::chrono::steady_clock;

bool wait_for(int fd, short events, std::chrono::milliseconds patience) {
  pollfd watched{fd, events, 0};
  return ::poll(&watched, 1, static_cast<int>(patience.count())) > 0;
}

sockaddr_in address_of(const char* text, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  ::inet_pton(AF_INET, text, &address.sin_addr);
  return address;
}

}  // namespace

Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) ::close(fd_);
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

Socket Socket::connect(const std::string& address, std::uint16_t port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in to = address_of(address.c_str(), port);
  if (::connect(socket.fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) return {};
  return socket;
}

bool Socket::send(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t size = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size < 0 && errno == EAGAIN && wait_for(fd_, POLLOUT, std::chrono::seconds(1))) continue;
    if (size < 0) return errno == EAGAIN;
    bytes.remove_prefix(static_cast<std::size_t>(size));
  }
  return true;
}

std::string Socket::receive_some(std::chrono::milliseconds patience) const {
  if (!wait_for(fd_, POLLIN, patience)) return {};
  std::array<char, 65536> bytes;
  const ssize_t size = ::recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

bool Socket::closed_within(std::chrono::milliseconds patience) const {
  const auto deadline = Clock::now() + patience;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0 || !wait_for(fd_, POLLIN, left)) return false;
    if (receive_some(std::chrono::milliseconds(1)).empty()) return true;
  }
}

Listener::Listener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = address_of("127.0.0.1", 0);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket_.fd(), generic, size) == 0 && ::listen(socket_.fd(), 16) == 0 &&
      ::getsockname(socket_.fd(), generic, &size) == 0) {
    port_ = ntohs(address.sin_port);
  }
}

Socket Listener::accept(std::chrono::milliseconds patience) const {
  if (!wait_for(socket_.fd(), POLLIN, patience)) return {};
  return Socket(::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
}

}  // namespace p2p::testing
