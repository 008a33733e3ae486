// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/worker.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/lock_polling.h"
#include "base/log.h"
#include "base/memory_guard.h"
#include "base/relax.h"
#include "base/thread.h"
#include "engine/schedule/channel_runner.h"

namespace p2p::engine {
namespace {

using Clock = std::chrono::steady_clock;

// How long the thread sleeps between looks at a runner that is busy but has no descriptor that says when.
constexpr long kBusyPollNanoseconds = 20'000;

// While something moves the thread looks so often which of the other runners have something to read.
constexpr std::chrono::microseconds kLook{50};

// Who polls has its core to itself for as long as the answer to a short message takes. Then it is left to
// threads that wait for it, of which one may have what is polled for.
constexpr std::chrono::microseconds kAlone{15};

// Of runners that one look finds: as many as there may well be, since those not found wait for the turns of
// all others.
constexpr std::size_t kMostEvents = 1024;

// Kernels before 5.11 have no epoll_pwait2, and some sandboxes forbid it.
std::atomic<bool> has_pwait2{true};

/// The system call itself: the C library has a function for it since glibc 2.35 only.
int epoll_pwait2(int epoll, epoll_event* events, int most, const timespec* timeout) {
  return static_cast<int>(::syscall(SYS_epoll_pwait2, epoll, events, most, timeout, nullptr, 0));
}

int wait_for_events(int epoll, std::span<epoll_event> events, const timespec* timeout) {
  const auto most = static_cast<int>(events.size());
  if (has_pwait2.load(std::memory_order_relaxed)) {
    const int count = epoll_pwait2(epoll, events.data(), most, timeout);
    if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return count;
    has_pwait2.store(false, std::memory_order_relaxed);
    log(LogLevel::kInfo, "the system has no epoll_pwait2; workers sleep in ppoll");
  }
  pollfd watched{epoll, POLLIN, 0};
  if (::ppoll(&watched, 1, timeout, nullptr) <= 0) return 0;
  return ::epoll_wait(epoll, events.data(), most, 0);
}

}  // namespace

Result<std::unique_ptr<Worker>> Worker::make(std::chrono::nanoseconds spin) {
  UniqueFd epoll = UniqueFd::of(::epoll_create1, EPOLL_CLOEXEC);
  UniqueFd wake = UniqueFd::of(::eventfd, 0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (!epoll || !wake) return tl::unexpected(system_error("start a worker: epoll"));
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return tl::unexpected(system_error("start a worker: epoll_ctl"));
  }
  return std::unique_ptr<Worker>(new Worker(spin, std::move(epoll), std::move(wake)));
}

Result<std::unique_ptr<Worker>> Worker::start(std::chrono::nanoseconds spin, unsigned number) {
  auto worker = make(spin);
  if (!worker) return worker;
  auto thread = start_thread(fmt::format("p2p-worker{}", number), [w = worker->get()] { w->run(); });
  if (!thread) return tl::unexpected(thread.error());
  (*worker)->thread_ = std::move(*thread);
  return worker;
}

Worker::Worker(std::chrono::nanoseconds spin, UniqueFd epoll, UniqueFd wake)
    : spin_(spin), epoll_(std::move(epoll)), wake_(std::move(wake)) {}

Worker::~Worker() { stop(); }

void Worker::stop() {
  if (!thread_.joinable()) return;  // it never started
  stop_.store(true);
  asleep_.store(true);  // so that wake writes
  wake();
  thread_.join();
  // These may hold runners, which hold the worker.
  active_.clear();
  MutexLock lock(inbox_mutex_);
  inbox_.clear();
  signals_.clear();
}

void Worker::wake() {
  if (asleep_.exchange(false)) ::eventfd_write(wake_.get(), 1);
}

void Worker::post(std::function<void(PostUnlockActions&)> task) {
  {
    MutexLock lock(inbox_mutex_);
    inbox_.push_back(std::move(task));
  }
  wake();
}

void Worker::signal(std::shared_ptr<ChannelRunner> runner) {
  {
    MutexLock lock(inbox_mutex_);
    signals_.push_back(std::move(runner));
  }
  wake();
}

Status Worker::add(std::shared_ptr<ChannelRunner> runner, int fd) {
  assume_locked();
  if (fd >= 0) {
    epoll_event event{.events = EPOLLIN, .data = {.ptr = runner.get()}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return tl::unexpected(system_error("watch a channel: epoll_ctl"));
    }
  }
  const void* const key = runner.get();
  runners_.emplace(key, std::move(runner));
  return {};
}

void Worker::remove(const ChannelRunner& runner, int fd) {
  assume_locked();
  if (fd >= 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  runners_.erase(&runner);
  load_.fetch_sub(1, std::memory_order_relaxed);
}

void Worker::arm(ChannelRunner& runner, int fd, bool on) {
  epoll_event event{.events = on ? std::uint32_t{EPOLLIN} : 0, .data = {.ptr = &runner}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Worker::run() {
  auto moved_at = Clock::now();
  auto looked_at = moved_at;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (left_to_callers()) {
      // Callers who do not wait for what they began are taken to be gone after some microseconds.
      const bool soon = std::ranges::any_of(active_, [](const auto& runner) { return runner->left_busy(); });
      soon ? relax() : sleep();
      continue;
    }
    PostUnlockActions actions;
    lock_polling(mutex_);
    bool moved = true;
    guard_memory("a turn of a worker", [&] {
      assume_locked();
      moved = work(actions);
    });
    mutex_.unlock();
    actions.run();
    if (moved) {
      moved_at = Clock::now();
      // A busy runner does not keep those at rest from being seen.
      if (moved_at - looked_at < kLook) continue;
      const timespec no_wait{};
      activate_ready(&no_wait);
      looked_at = moved_at;
    } else if (const auto idle = Clock::now() - moved_at; idle < spin_) {
      idle < kAlone ? relax() : std::this_thread::yield();
    } else {
      sleep();
      moved_at = Clock::now();
    }
  }
}

bool Worker::work(PostUnlockActions& actions) {
  std::vector<std::function<void(PostUnlockActions&)>> tasks;
  std::vector<std::shared_ptr<ChannelRunner>> signals;
  {
    MutexLock lock(inbox_mutex_);
    tasks.swap(inbox_);
    signals.swap(signals_);
  }
  for (const auto& task : tasks) guard_memory("a task of a channel", [&] { task(actions); });
  for (const auto& runner : signals) runner->clear_signal();
  bool moved = !tasks.empty() || !signals.empty();
  const auto now = Clock::now();
  const auto active = active_;  // a turn may stop its runner
  for (const auto& runner : active) moved = runner->turn_if_due(now, actions) || moved;
  std::erase_if(active_, [&](const auto& runner) { return !runner->stays_active(now); });
  return moved;
}

// True if a look, which would hold callers up, is not due.
bool Worker::left_to_callers() {
  const auto now = Clock::now();
  if (active_.empty() || !std::all_of(active_.begin(), active_.end(),
                                      [&](const auto& runner) { return runner->left_to_caller(now); })) {
    return false;
  }
  MutexLock lock(inbox_mutex_);
  return inbox_.empty() && signals_.empty();
}

void Worker::sleep() {
  const bool busy = !active_.empty();
  asleep_.store(true);
  {
    MutexLock lock(inbox_mutex_);
    if (!inbox_.empty() || !signals_.empty() || stop_.load()) {
      asleep_.store(false);
      return;
    }
  }
  const timespec nap{0, kBusyPollNanoseconds};
  activate_ready(busy ? &nap : nullptr);
}

// Waits for descriptors, without end if `patience` is null, and has their runners looked at from now on.
void Worker::activate_ready(const timespec* patience) {
  std::array<epoll_event, kMostEvents> events;
  const int count = wait_for_events(epoll_.get(), events, patience);
  asleep_.store(false);
  if (count <= 0) return;
  MutexLock lock(mutex_);
  for (const epoll_event& event : std::span(events).first(static_cast<std::size_t>(count))) {
    const void* const key = event.data.ptr;  // a copy: the field of this packed struct is not aligned
    if (key == nullptr) {
      eventfd_t ignored = 0;
      ::eventfd_read(wake_.get(), &ignored);
      continue;
    }
    // It may have been removed since.
    const auto found = runners_.find(key);
    if (found != runners_.end()) guard_memory("an event of a channel", [&] { found->second->activate(); });
  }
}

}  // namespace p2p::engine
