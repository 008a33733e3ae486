// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace p2p::testing {

/// A plain TCP socket for tests that play a stranger. Every wait is bounded. Movable.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  /// Invalid if nobody accepts.
  static Socket connect(const std::string& address, std::uint16_t port);

  bool valid() const { return fd_ >= 0; }
  int fd() const { return fd_; }

  /// Sends what the other side takes; false once it has closed.
  bool send(std::string_view bytes) const;

  /// What has come, after waiting for something; empty at the end or after `patience`.
  std::string receive_some(std::chrono::milliseconds patience = std::chrono::seconds(10)) const;

  /// True if the other side closes within `patience`; what it sends until then is dropped.
  bool closed_within(std::chrono::milliseconds patience) const;

 private:
  int fd_ = -1;
};

/// Listens on a port of 127.0.0.1 that the system chose.
class Listener {
 public:
  Listener();

  std::uint16_t port() const { return port_; }
  int fd() const { return socket_.fd(); }

  /// Invalid if nobody comes within `patience`.
  Socket accept(std::chrono::milliseconds patience = std::chrono::seconds(10)) const;

 private:
  Socket socket_;
  std::uint16_t port_ = 0;
};

}  // namespace p2p::testing
