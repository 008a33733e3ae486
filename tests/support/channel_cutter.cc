// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "channel_cutter.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

namespace p2p::testing {

Socket ChannelCutter::listen_at(std::uint16_t port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  ::inet_pton(AF_INET, kHost, &address.sin_addr);
  const int yes = 1;  // of an earlier one at that port connections may still be about to end
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const bool bound = ::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  return bound && ::listen(socket.fd(), 16) == 0 ? std::move(socket) : Socket();
}

/// What a connection carries counts, and may be its end.
bool ChannelCutter::passes(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (blocks_) return false;
  if (due_.empty()) return true;
  carried_ += bytes;
  if (carried_ < due_.front()) return true;
  due_.pop_front();
  carried_ = 0;
  return false;
}

void ChannelCutter::reset(Flow& flow) {
  const linger at_once{1, 0};
  for (const Socket* end : {&flow.dialler, &flow.dialled}) {
    ::setsockopt(end->fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  flow.dead = true;
}

bool ChannelCutter::swallow(Socket& dialler) {
  const std::lock_guard lock(mutex_);
  if (swallows_) swallowed_.push_back(std::move(dialler));
  return swallows_;
}

void ChannelCutter::add(std::uint16_t target) {
  Socket dialler(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (swallow(dialler)) return;
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

void ChannelCutter::move(Flow& flow, Way& way) {
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

void ChannelCutter::cut_if_asked() {
  eventfd_t count = 0;
  ::eventfd_read(wake_.fd(), &count);
  const std::lock_guard lock(mutex_);
  if (!std::exchange(cuts_, false)) return;
  for (const auto& flow : flows_) {
    if (!flow->spared) reset(*flow);
  }
}

void ChannelCutter::run(std::uint16_t target) {
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
    std::erase_if(flows_,
                  [](const auto& flow) { return flow->dead || (flow->ways[0].over && flow->ways[1].over); });
  }
}

}  // namespace p2p::testing
