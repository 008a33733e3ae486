// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/loop/process_watch.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"

namespace p2p::engine {

void ProcessWatch::start(const ProcessId& self, const ProcessId& other, const std::function<void()>& ended) {
  stop();
  const bool known = std::ranges::any_of(other.boot, [](std::byte byte) { return byte != std::byte{0}; });
  if (!known || self.boot != other.boot || self.pid_namespace != other.pid_namespace) return;
  process_ = UniqueFd::of(::syscall, SYS_pidfd_open, static_cast<pid_t>(other.pid), 0);
  if (!process_ && errno != ESRCH) return;
  // Where /proc hides others' processes, the number alone has to do.
  const auto started = start_of(other.pid);
  if (!process_ || (started && *started != other.started)) {
    process_.reset();
    at_once_ = reactor_.after({}, ended);
    return;
  }
  const Status watched = reactor_.watch(process_.get(), EPOLLIN, [this, ended](std::uint32_t) {
    stop();
    ended();
  });
  if (!watched) log(LogLevel::kWarning, "{}", watched.error().message);
}

void ProcessWatch::stop() {
  reactor_.cancel(at_once_);
  if (process_) reactor_.unwatch(process_.get());
  process_.reset();
}

}  // namespace p2p::engine
