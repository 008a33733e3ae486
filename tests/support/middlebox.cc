// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "middlebox.h"

#include <algorithm>
#include <cerrno>

namespace p2p::testing {

void Middlebox::run() {
  while (true) {
    std::vector<std::shared_ptr<Flow>> flows;
    std::vector<pollfd> watched;
    {
      const std::lock_guard lock(mutex_);
      if (over_) return;
      watched.push_back({wake_.get(), POLLIN, 0});
      watched.push_back({held_ ? -1 : listener_.get(), POLLIN, 0});
      for (const auto& flow : flows_) {
        if (flow->gone || flow->swallowed) continue;
        flows.push_back(flow);
        for (const std::size_t from : {0U, 1U}) {
          const bool full = !flow->waiting[from].empty();
          const int fd = full ? flow->ends[1 - from].get() : flow->ended[from] ? -1 : flow->ends[from].get();
          watched.push_back({fd, static_cast<short>(full ? POLLOUT : POLLIN), 0});
        }
      }
    }
    if (::poll(watched.data(), watched.size(), -1) < 0) continue;  // a signal
    const std::lock_guard lock(mutex_);
    std::uint64_t count = 0;
    if (watched[0].revents != 0) ::eventfd_read(wake_.get(), &count);
    for (std::size_t i = 0; i != flows.size(); ++i) {
      for (const std::size_t from : {0U, 1U}) {
        if (watched[2 + 2 * i + from].revents != 0 && !flows[i]->gone && !flows[i]->swallowed) {
          move(*flows[i], from);
        }
      }
    }
    if (watched[1].revents != 0 && listener_.get() >= 0 && !held_) take_one();
  }
}

void Middlebox::take_one() {
  auto flow = std::make_shared<Flow>();
  flow->ends[0].close(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  flow->ends[1].close(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(target_);
  if (::connect(flow->ends[1].get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    flow->reset();
  }
  flows_.push_back(std::move(flow));
}

// A buffer at most; a break of one end is one of the other.
void Middlebox::move(Flow& flow, std::size_t from) {
  Said& waiting = flow.waiting[from];
  if (waiting.empty()) {
    waiting.resize(65536);
    const ssize_t got = ::recv(flow.ends[from].get(), waiting.data(), waiting.size(), MSG_DONTWAIT);
    waiting.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && errno != EAGAIN) return flow.reset();
    flow.ended[from] = got == 0;
    if (got == 0) ::shutdown(flow.ends[1 - from].get(), SHUT_WR);
    if (from == 0 && flow.said.size() < kMostKept) {
      flow.said.insert(flow.said.end(), waiting.begin(), waiting.end());
    }
    if (!waiting.empty() && flow.is_stream() && !lets_pass(flow, waiting.size())) return;
    if (flow.ended[0] && flow.ended[1]) return flow.close();
  }
  if (waiting.empty()) return;
  const ssize_t sent =
      ::send(flow.ends[1 - from].get(), waiting.data(), waiting.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && errno != EAGAIN) return flow.reset();
  if (sent > 0) waiting.erase(waiting.begin(), waiting.begin() + sent);
}

/// What a stream carries counts, and may be its end.
bool Middlebox::lets_pass(Flow& flow, std::size_t bytes) {
  const bool first = flow.said.size() == bytes;
  if (first && swallows_) {
    flow.swallowed = true;
    return false;
  }
  carried_ += bytes;
  const bool due = !due_.empty() && carried_ >= due_.front();
  if (due) {
    due_.pop_front();
    carried_ = 0;
  }
  if (due || blocks_) flow.reset();
  return !flow.gone;
}

}  // namespace p2p::testing
