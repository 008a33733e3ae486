// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/fence.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace p2p::engine {
namespace {

// Of ends that no descriptor could be had for, or that nothing announces.
constexpr std::chrono::milliseconds kLook{20};

}  // namespace

void Fence::add(std::unique_ptr<PeerEnd> end) {
  MutexLock lock(mutex_);
  if (!events_) events_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.fd = end->fd()}};
  if (!events_ || ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, end->fd(), &event) != 0) {
    log(LogLevel::kWarning, "{}", system_error("watch the end of a peer's channel").message);
  }
  ends_.push_back(std::move(end));
}

bool Fence::passed() {
  MutexLock lock(mutex_);
  std::erase_if(ends_, [](const auto& end) { return end->over(); });
  return ends_.empty();
}

bool Fence::wait(std::chrono::steady_clock::time_point deadline) {
  while (!passed()) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return false;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        std::min<std::chrono::nanoseconds>(deadline - now, kLook));
    pollfd watched{fd(), POLLIN, 0};
    ::poll(&watched, 1, static_cast<int>(left.count()));
  }
  return true;
}

void Fence::when_passed(const std::shared_ptr<Fence>& fence, Reactor& reactor,
                        std::chrono::milliseconds limit, std::function<void(bool passed)> then) {
  if (fence->passed()) return then(true);
  const auto once = std::make_shared<std::function<void(bool)>>(std::move(then));
  const auto call = [once](bool passed) {
    if (*once) std::exchange(*once, nullptr)(passed);
  };
  const auto timer = reactor.after(limit, [fence, call] { call(fence->passed()); });
  const int fd = fence->fd();
  // The watch stays beyond the limit: its end closes what the fence holds open.
  const Status watched = reactor.watch(fd, EPOLLIN, [&reactor, fence, fd, timer, call](std::uint32_t) {
    if (!fence->passed()) return;
    reactor.cancel(timer);
    call(true);
    reactor.unwatch(fd);
  });
  if (!watched) log(LogLevel::kWarning, "{}", watched.error().message);
}

int Fence::fd() const {
  MutexLock lock(mutex_);
  return events_ ? events_.get() : -1;
}

}  // namespace p2p::engine
