// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "p2p/result.h"

namespace tcpx::tool {

/// The plain TCP connection that carries handles and results between server and client. Every call ends
/// within the timeout it was made with.
class Bootstrap {
 public:
  /// Takes the first client that connects to the port. `listening` is called once one can.
  static p2p::Result<Bootstrap> serve(std::uint16_t port, std::chrono::seconds timeout,
                                      const std::function<void()>& listening);
  static p2p::Result<Bootstrap> dial(const std::string& host, std::uint16_t port,
                                     std::chrono::seconds timeout);
  Bootstrap(Bootstrap&& other) noexcept;
  Bootstrap& operator=(Bootstrap&&) = delete;
  ~Bootstrap();

  /// A message of at most 1 MiB.
  p2p::Status send(std::span<const std::byte> message) const;
  p2p::Result<std::vector<std::byte>> receive() const;

  /// Address and port of the other side.
  std::string peer() const;

  p2p::Status send_text(const std::string& text) const;
  p2p::Result<std::string> receive_text() const;

 private:
  Bootstrap(int fd, std::chrono::seconds timeout) : fd_(fd), timeout_(timeout) {}
  p2p::Status move(std::byte* data, std::size_t size, bool out) const;
  int fd_ = -1;
  std::chrono::seconds timeout_;
};

}  // namespace tcpx::tool
