// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "support/raw_listener.h"
#include "support/raw_peer.h"

namespace p2p::testing {

/// Stands between those who dial a port of 127.0.0.2 and the same port of 127.0.0.1, and keeps what either
/// side says, in order.
class Relay {
 public:
  static constexpr const char* kHost = "127.0.0.2";

  struct Piece {
    std::size_t connection = 0;  ///< counted from 0 as they were dialled
    bool dialler = false;        ///< said by the side that dialled
    Bytes bytes;
    std::string mark{};  ///< in place of all these, if there is one
  };

  explicit Relay(std::uint16_t port)
      : listener_(INADDR_LOOPBACK + 1, port), thread_([this, port] { run(port); }) {}
  ~Relay() { stop(); }

  /// Puts a remark among what was said up to now and what will be.
  void mark(std::string text) { keep({.bytes = {}, .mark = std::move(text)}); }

  /// Ends it; all that was said.
  std::vector<Piece> stop() {
    ::eventfd_write(stop_.get(), 1);
    if (thread_.joinable()) thread_.join();
    const std::lock_guard lock(mutex_);
    return pieces_;
  }

 private:
  /// One direction of a connection.
  struct Way {
    std::size_t connection;
    bool dialler;
    int from;
    int to;
    bool ended = false;
  };

  void keep(Piece piece) {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(std::move(piece));
  }

  void run(std::uint16_t target) {
    std::vector<RawPeer> ends;
    std::vector<Way> ways;
    for (std::vector<pollfd> watched;; watched.clear()) {
      watched.push_back({stop_.get(), POLLIN, 0});
      watched.push_back({listener_.fd(), POLLIN, 0});
      for (const Way& way : ways) watched.push_back({way.ended ? -1 : way.from, POLLIN, 0});
      if (::poll(watched.data(), watched.size(), -1) < 0) continue;  // a signal
      if (watched[0].revents != 0) return;
      for (std::size_t i = 0; i != ways.size(); ++i) {
        if (watched[i + 2].revents != 0) move(ways[i]);
      }
      if (watched[1].revents == 0) continue;
      ends.push_back(listener_.accept());
      const int dialler = ends.back().fd();
      ends.push_back(RawPeer::dial(target));
      const std::size_t connection = ends.size() / 2 - 1;
      ways.push_back({connection, true, dialler, ends.back().fd()});
      ways.push_back({connection, false, ends.back().fd(), dialler});
    }
  }

  // Kept before it goes on: what answers it comes later.
  void move(Way& way) {
    std::array<std::byte, 65536> buffer{};
    const ssize_t got = ::recv(way.from, buffer.data(), buffer.size(), 0);
    way.ended = got <= 0;
    if (way.ended) {
      ::shutdown(way.to, SHUT_WR);
      return;
    }
    const ByteView bytes(buffer.data(), static_cast<std::size_t>(got));
    keep({way.connection, way.dialler, Bytes(bytes.begin(), bytes.end())});
    way.ended = ::send(way.to, bytes.data(), bytes.size(), MSG_NOSIGNAL) != got;
  }

  const RawListener listener_;
  const UniqueFd stop_{::eventfd(0, EFD_CLOEXEC)};
  std::mutex mutex_;
  std::vector<Piece> pieces_;
  std::thread thread_;  // uses all the others
};

}  // namespace p2p::testing
