// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/unique_fd.h"
#include "wire/decode.h"
#include "wire/encode.h"

/// Bare sockets for tests of what speaks the control protocol.
namespace p2p::engine {

/// A listening socket on the loopback address.
class BareListener {
 public:
  BareListener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_.get(), 16), 0);
    EXPECT_EQ(getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  std::uint16_t port() const { return port_; }
  /// Nothing if nobody comes within 30 s: who dialled may have given up before its connection was made.
  UniqueFd accept() {
    constexpr int kMostMs = 30'000;
    pollfd watched{fd_.get(), POLLIN, 0};
    int ready = 0;
    while ((ready = ::poll(&watched, 1, kMostMs)) < 0 && errno == EINTR) {
    }
    return UniqueFd(ready > 0 ? accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC) : -1);
  }
  void close() { fd_.reset(); }
  void stop() { ::shutdown(fd_.get(), SHUT_RDWR); }  ///< ends `accept`

 private:
  UniqueFd fd_;
  std::uint16_t port_ = 0;
};

/// What a peer that is not ours does by hand, over a blocking socket.
struct Stranger {
  UniqueFd fd;
  wire::FrameReader reader;

  explicit Stranger(UniqueFd socket) : fd(std::move(socket)) {
    const int on = 1;  // what was sent has left, also if a reset follows
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const timeval limit{30, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }
  void send(ByteView bytes) { (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void send(const wire::Message& message) { send(ByteView(wire::encode(message))); }

  /// Its side of a handshake without a key.
  void introduce() {
    send(wire::Hello{.incarnation = 2});
    send(wire::Introduction{});
  }

  /// The next message; nothing at the end of the stream.
  std::optional<wire::Message> next() {
    for (;;) {
      auto message = reader.next();
      EXPECT_TRUE(message);
      if (!message || *message) return message ? *message : std::nullopt;
      std::array<std::byte, 4096> buffer{};
      const ssize_t got = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
      if (got <= 0) return std::nullopt;
      reader.feed(ByteView(buffer.data(), static_cast<std::size_t>(got)));
    }
  }
  /// True if the other side closed before the patience ran out.
  bool dropped() {
    std::array<std::byte, 4096> buffer{};
    for (;;) {
      const ssize_t got = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
      if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
      if (got < 0) return false;
    }
  }
};

inline std::pair<UniqueFd, UniqueFd> socket_pair() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

}  // namespace p2p::engine
