// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "support/sockets.h"

namespace p2p::testing {

/// Carries connections from a port of 127.0.0.2 to the same port of 127.0.0.1, and resets some of them, as
/// firewalls and address translators do: both ends see an RST. The first connection, a session's, is left
/// alone.
class Middlebox {
 public:
  static constexpr const char* kHost = "127.0.0.2";

  explicit Middlebox(std::uint16_t port) : listener_(listen_at(port)), thread_([this, port] { run(port); }) {}
  ~Middlebox() {
    ::eventfd_write(stop_.fd(), 1);
    thread_.join();
  }
  Middlebox(const Middlebox&) = delete;
  Middlebox& operator=(const Middlebox&) = delete;

  /// Each of these resets one connection, that which first has carried so many bytes more from now on.
  void reset_after(const std::vector<std::uint64_t>& bytes) {
    const std::lock_guard lock(mutex_);
    due_.insert(due_.end(), bytes.begin(), bytes.end());
    carried_ = 0;
  }

  /// Resets all that are there now.
  void cut() {
    {
      const std::lock_guard lock(mutex_);
      cuts_ = true;
    }
    ::eventfd_write(wake_.fd(), 1);
  }

  /// Resets those that carry anything from now on, and all that are dialled, or no more.
  void block(bool blocks) {
    const std::lock_guard lock(mutex_);
    blocks_ = blocks;
  }

 private:
  static constexpr std::size_t kBuffer = 65536;

  /// One direction.
  struct Way {
    int from;
    int to;
    std::array<std::byte, kBuffer> bytes{};
    std::size_t begin = 0;
    std::size_t end = 0;
    bool over = false;  // nothing comes any more

    pollfd wish() const {
      if (begin != end) return {to, POLLOUT, 0};
      return {over ? -1 : from, POLLIN, 0};
    }
  };

  struct Flow {
    Socket dialler;
    Socket dialled;
    std::array<Way, 2> ways;
    bool spared;  // the session's
    bool dead = false;
  };

  static Socket listen_at(std::uint16_t port) {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    ::inet_pton(AF_INET, kHost, &address.sin_addr);
    const bool bound = ::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    return bound && ::listen(socket.fd(), 16) == 0 ? std::move(socket) : Socket();
  }

  /// What a connection carries counts, and may be its end.
  bool passes(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (blocks_) return false;
    if (due_.empty()) return true;
    carried_ += bytes;
    if (carried_ < due_.front()) return true;
    due_.pop_front();
    carried_ = 0;
    return false;
  }

  static void reset(Flow& flow) {
    const linger at_once{1, 0};
    for (const Socket* end : {&flow.dialler, &flow.dialled}) {
      ::setsockopt(end->fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    }
    flow.dead = true;
  }

  void add(std::uint16_t target) {
    Socket dialler(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    Socket dialled = Socket::connect("127.0.0.1", target);
    if (!dialler.valid() || !dialled.valid()) return;
    const int from = dialler.fd();
    const int to = dialled.fd();
    for (const int fd : {from, to}) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    const bool first = !std::exchange(dialled_, true);
    flows_.push_back(std::unique_ptr<Flow>(
        new Flow{std::move(dialler), std::move(dialled), {Way{from, to}, Way{to, from}}, first}));
    if (!first && !passes(0)) reset(*flows_.back());
  }

  void move(Flow& flow, Way& way) {
    if (flow.dead) return;
    if (way.begin == way.end) {
      const ssize_t got = ::recv(way.from, way.bytes.data(), way.bytes.size(), 0);
      if (got < 0 && errno == EAGAIN) return;
      if (got < 0) return reset(flow);
      way.over = got == 0;
      if (way.over) ::shutdown(way.to, SHUT_WR);
      way.begin = 0;
      way.end = static_cast<std::size_t>(got);
      if (!flow.spared && !way.over && !passes(way.end)) return reset(flow);
    }
    const ssize_t sent = ::send(way.to, way.bytes.data() + way.begin, way.end - way.begin, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return reset(flow);
    if (sent > 0) way.begin += static_cast<std::size_t>(sent);
  }

  void cut_if_asked() {
    eventfd_t count = 0;
    ::eventfd_read(wake_.fd(), &count);
    const std::lock_guard lock(mutex_);
    if (!std::exchange(cuts_, false)) return;
    for (const auto& flow : flows_) {
      if (!flow->spared) reset(*flow);
    }
  }

  void run(std::uint16_t target) {
    for (std::vector<pollfd> watched;; watched.clear()) {
      watched.push_back({stop_.fd(), POLLIN, 0});
      watched.push_back({wake_.fd(), POLLIN, 0});
      watched.push_back({listener_.fd(), POLLIN, 0});
      std::vector<std::pair<Flow*, Way*>> of;
      for (const auto& flow : flows_) {
        for (Way& way : flow->ways) {
          watched.push_back(way.wish());
          of.emplace_back(flow.get(), &way);
        }
      }
      if (::poll(watched.data(), watched.size(), -1) < 0) continue;  // a signal
      if (watched[0].revents != 0) return;
      for (std::size_t i = 0; i != of.size(); ++i) {
        if (watched[i + 3].revents != 0) move(*of[i].first, *of[i].second);
      }
      if (watched[1].revents != 0) cut_if_asked();
      if (watched[2].revents != 0) add(target);
      std::erase_if(
          flows_, [](const auto& flow) { return flow->dead || (flow->ways[0].over && flow->ways[1].over); });
    }
  }

  const Socket listener_;
  const Socket stop_{::eventfd(0, EFD_CLOEXEC)};
  const Socket wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::mutex mutex_;
  std::deque<std::uint64_t> due_;
  std::uint64_t carried_ = 0;
  bool blocks_ = false;
  bool cuts_ = false;
  std::vector<std::unique_ptr<Flow>> flows_;  // the thread's, as the next one is
  bool dialled_ = false;
  std::thread thread_;  // uses all the others
};

}  // namespace p2p::testing
