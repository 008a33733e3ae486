// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/poll_set.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>

#include "base/error.h"

namespace p2p::socket {

Result<PollSet> PollSet::open() {
  UniqueFd epoll = UniqueFd::of(::epoll_create1, EPOLL_CLOEXEC);
  if (!epoll) return tl::unexpected(system_error("open an epoll set"));
  UniqueFd timer = UniqueFd::of(::timerfd_create, CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (!timer) return tl::unexpected(system_error("open a timer"));
  PollSet set(std::move(epoll), std::move(timer));
  if (Status status = set.add(set.timer_.get(), EPOLLIN); !status) return tl::unexpected(status.error());
  return set;
}

Status PollSet::add(int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return tl::unexpected(system_error("watch a descriptor"));
}

void PollSet::change(int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void PollSet::remove(int fd) { (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void PollSet::set_alarm(std::chrono::steady_clock::time_point deadline) {
  // steady_clock is CLOCK_MONOTONIC; a time of zero would disarm the timer.
  const auto since = std::max(deadline.time_since_epoch(), std::chrono::steady_clock::duration(1));
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
  itimerspec spec{};
  spec.it_value.tv_sec = seconds.count();
  spec.it_value.tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(since - seconds).count();
  (void)::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
}

void PollSet::clear_alarm() {
  const itimerspec never{};
  (void)::timerfd_settime(timer_.get(), 0, &never, nullptr);
}

}  // namespace p2p::socket
