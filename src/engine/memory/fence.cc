// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/memory/fence.h"

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

void Fence::add(std::unique_ptr<PeerEnd> end, Release release) {
  if (release) {
    reactor_.post([self = shared_from_this()] {
      self->reactor_.after(self->limit_, [self] { self->release_held(); });
    });
  }
  MutexLock lock(mutex_);
  if (!events_) events_ = UniqueFd::of(::epoll_create1, EPOLL_CLOEXEC);
  epoll_event event{.events = EPOLLIN, .data = {.fd = end->fd()}};
  if (!events_ || ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, end->fd(), &event) != 0) {
    log(LogLevel::kWarning, "{}", system_error("watch the end of a peer's channel").message);
  }
  if (release) held_.push_back({std::move(release), end.get()});
  ends_.push_back(std::move(end));
}

bool Fence::passed() {
  MutexLock lock(mutex_);
  const auto over = std::partition(ends_.begin(), ends_.end(), [](const auto& end) { return !end->over(); });
  for (Held& each : held_) {
    const auto theirs = [&](const auto& end) { return end.get() == each.end; };
    if (std::any_of(over, ends_.end(), theirs)) each.end = nullptr;
  }
  ends_.erase(over, ends_.end());
  return ends_.empty();
}

void Fence::release_held() {
  passed();
  std::vector<Held> held;
  {
    MutexLock lock(mutex_);
    held.swap(held_);
  }
  for (const Held& each : held) each.release(each.end == nullptr);
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

void Fence::when_passed(std::function<void(bool passed)> then) {
  if (passed()) return then(true);
  const auto self = shared_from_this();
  const auto once = std::make_shared<std::function<void(bool)>>(std::move(then));
  const auto call = [once](bool passed) {
    if (*once) std::exchange(*once, nullptr)(passed);
  };
  const auto timer = reactor_.after(limit_, [self, call] { call(self->passed()); });
  // The watch stays beyond the limit: its end closes what the fence holds open.
  const int fd = this->fd();
  const Status watched = reactor_.watch(fd, EPOLLIN, [self, fd, timer, call](std::uint32_t) {
    if (!self->passed()) return;
    self->reactor_.cancel(timer);
    call(true);
    self->reactor_.unwatch(fd);
  });
  if (!watched) log(LogLevel::kWarning, "{}", watched.error().message);
}

int Fence::fd() const {
  MutexLock lock(mutex_);
  return events_ ? events_.get() : -1;
}

}  // namespace p2p::engine
