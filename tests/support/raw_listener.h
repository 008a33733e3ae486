// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <chrono>

#include "support/raw_peer.h"

namespace p2p::testing {

/// Where a raw peer is dialled.
class RawListener {
 public:
  /// At 127.0.0.1, or another address of this host alone; port 0: any.
  explicit RawListener(in_addr_t host = INADDR_LOOPBACK, std::uint16_t port = 0)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(host);
    address.sin_port = htons(port);
    socklen_t size = sizeof address;
    if (::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 &&
        ::listen(socket_.get(), 16) == 0 &&
        ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0) {
      port_ = ntohs(address.sin_port);
    }
  }

  std::uint16_t port() const { return port_; }
  int fd() const { return socket_.get(); }

  RawPeer accept() const {
    const auto deadline = std::chrono::steady_clock::now() + RawPeer::kPatience;
    if (!RawPeer::await(socket_.get(), POLLIN, deadline)) return RawPeer(UniqueFd());
    return RawPeer(UniqueFd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }

 private:
  UniqueFd socket_;
  std::uint16_t port_ = 0;
};

}  // namespace p2p::testing
