// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace p2p::testing {

/// A socket on 127.0.0.1 that is bound to a port, or connected to one.
inline UniqueFd loopback(std::uint16_t& port, bool connects) {
  UniqueFd socket = UniqueFd::of(::socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  if (connects && ::connect(socket.get(), name, size) != 0) return {};
  if (!connects && ::bind(socket.get(), name, size) != 0) return {};
  if (!connects && ::getsockname(socket.get(), name, &size) == 0) port = ntohs(address.sin_port);
  return socket;
}

/// All that is served at the path; empty if nobody serves.
inline std::string get(std::uint16_t port, const std::string& path) {
  const UniqueFd socket = loopback(port, true);
  if (!socket) return {};
  const std::string text = "GET " + path + " HTTP/1.0\r\n\r\n";
  if (::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return {};
  std::string all;
  std::array<char, 4096> part{};
  for (ssize_t got = 0; (got = ::recv(socket.get(), part.data(), part.size(), 0)) > 0;) {
    all.append(part.data(), static_cast<std::size_t>(got));
  }
  return all;
}

}  // namespace p2p::testing
