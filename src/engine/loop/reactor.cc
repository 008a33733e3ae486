// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/loop/reactor.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/memory_guard.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "base/unique_fd.h"

namespace p2p::engine {
namespace {

using Task = std::function<void()>;
using Handler = std::function<void(std::uint32_t)>;

/// Token of the eventfd; those of watches start above it.
constexpr std::uint64_t kWakeToken = 0;

}  // namespace

/// What the thread works on. Only the inbox is shared.
struct Reactor::Loop {
  struct Watch {
    int fd = -1;
    Handler handler;
  };

  void run();
  void dispatch(Clock::time_point now);
  void run_inbox();
  void run_timers(Clock::time_point now);
  int patience(Clock::time_point now) const;
  void wake();
  bool stopping();

  UniqueFd epoll;
  UniqueFd event;
  std::thread thread;

  // Events carry a token that is never used again, so that one of a descriptor that was closed in this round
  // does not reach the handler of a new descriptor with the same number.
  std::uint64_t next_token = kWakeToken + 1;
  std::unordered_map<std::uint64_t, std::shared_ptr<Watch>> watches;
  std::unordered_map<int, std::uint64_t> tokens;

  std::uint64_t next_timer = 1;
  std::map<std::pair<Clock::time_point, std::uint64_t>, Task> timers;
  std::unordered_map<std::uint64_t, Clock::time_point> due;

  Mutex mutex;
  std::vector<Task> inbox P2P_GUARDED_BY(mutex);
  bool stop P2P_GUARDED_BY(mutex) = false;
  bool ended P2P_GUARDED_BY(mutex) = false;  // nobody runs tasks any more
};

void Reactor::Loop::wake() {
  const std::uint64_t one = 1;
  // Fails only if the counter is full, and then the thread is awake.
  [[maybe_unused]] const auto written = ::write(event.get(), &one, sizeof one);
}

bool Reactor::Loop::stopping() {
  MutexLock lock(mutex);
  return stop;
}

/// Milliseconds until the next timer, rounded up so that it is due then; -1: no timer.
int Reactor::Loop::patience(Clock::time_point now) const {
  if (timers.empty()) return -1;
  const auto left = timers.begin()->first.first - now;
  const auto rounded = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<std::int64_t>(rounded, 0, std::numeric_limits<int>::max()));
}

void Reactor::Loop::dispatch(Clock::time_point now) {
  std::array<epoll_event, 64> events{};
  const int count = epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), patience(now));
  if (count < 0 && errno != EINTR) {
    log(LogLevel::kError, "{}", system_error("wait for events of control connections").message);
  }
  for (int i = 0; i < count; ++i) {
    const std::uint64_t token = events[static_cast<std::size_t>(i)].data.u64;
    if (token == kWakeToken) {
      std::uint64_t wakes = 0;
      [[maybe_unused]] const auto got = ::read(event.get(), &wakes, sizeof wakes);
      continue;
    }
    const auto found = watches.find(token);
    if (found == watches.end()) continue;
    // Held here because the handler may unwatch itself.
    const std::shared_ptr<Watch> watch = found->second;
    guard_memory("an event of a connection",
                 [&] { watch->handler(events[static_cast<std::size_t>(i)].events); });
  }
}

void Reactor::Loop::run_timers(Clock::time_point now) {
  while (!timers.empty() && timers.begin()->first.first <= now) {
    auto timer = timers.extract(timers.begin());
    due.erase(timer.key().second);
    guard_memory("a timer of a connection", [&] { timer.mapped()(); });
  }
}

void Reactor::Loop::run_inbox() {
  std::vector<Task> tasks;
  {
    MutexLock lock(mutex);
    tasks.swap(inbox);
  }
  for (Task& task : tasks) {
    guard_memory("a task of a connection", [&] { std::exchange(task, nullptr)(); });
  }
}

// Where the thread stood still meanwhile, a deadline is past and what meets it is there: that is taken first.
void Reactor::Loop::run() {
  while (!stopping()) {
    const auto now = Clock::now();
    dispatch(now);
    run_inbox();
    run_timers(now);
  }
  run_inbox();
  // What handlers and tasks own ends on this thread, and may call the reactor while it does.
  std::vector<Task> last_tasks;
  {
    MutexLock lock(mutex);
    ended = true;
    last_tasks.swap(inbox);
  }
  auto last_watches = std::exchange(watches, {});
  auto last_timers = std::exchange(timers, {});
}

Reactor::Reactor(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}

Result<std::unique_ptr<Reactor>> Reactor::start() {
  auto loop = std::make_unique<Loop>();
  loop->epoll = UniqueFd::of(::epoll_create1, EPOLL_CLOEXEC);
  loop->event = UniqueFd::of(::eventfd, 0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.u64 = kWakeToken;
  if (!loop->epoll || !loop->event ||
      epoll_ctl(loop->epoll.get(), EPOLL_CTL_ADD, loop->event.get(), &wanted) != 0) {
    return tl::unexpected(system_error("open the session thread's epoll set"));
  }
  auto thread = start_thread("p2p-session", [raw = loop.get()] { raw->run(); });
  if (!thread) return tl::unexpected(thread.error());
  loop->thread = std::move(*thread);
  return std::unique_ptr<Reactor>(new Reactor(std::move(loop)));
}

Reactor::~Reactor() { stop(); }

void Reactor::stop() {
  if (!loop_->thread.joinable()) return;
  {
    MutexLock lock(loop_->mutex);
    loop_->stop = true;
  }
  loop_->wake();
  loop_->thread.join();
}

void Reactor::post(Task task) {
  bool first = false;
  {
    MutexLock lock(loop_->mutex);
    if (loop_->ended) return;
    first = loop_->inbox.empty();
    loop_->inbox.push_back(std::move(task));
  }
  if (first) loop_->wake();
}

Status Reactor::watch(int fd, std::uint32_t events, Handler handler) {
  const std::uint64_t token = loop_->next_token++;
  epoll_event wanted{};
  wanted.events = events;
  wanted.data.u64 = token;
  if (epoll_ctl(loop_->epoll.get(), EPOLL_CTL_ADD, fd, &wanted) != 0) {
    return tl::unexpected(system_error(fmt::format("watch descriptor {}", fd)));
  }
  loop_->watches.emplace(token, std::make_shared<Loop::Watch>(fd, std::move(handler)));
  loop_->tokens.emplace(fd, token);
  return {};
}

void Reactor::change(int fd, std::uint32_t events) {
  const auto token = loop_->tokens.find(fd);
  if (token == loop_->tokens.end()) return;
  epoll_event wanted{};
  wanted.events = events;
  wanted.data.u64 = token->second;
  if (epoll_ctl(loop_->epoll.get(), EPOLL_CTL_MOD, fd, &wanted) != 0) {
    log(LogLevel::kError, "{}", system_error(fmt::format("watch descriptor {}", fd)).message);
  }
}

void Reactor::unwatch(int fd) {
  const auto token = loop_->tokens.find(fd);
  if (token == loop_->tokens.end()) return;
  epoll_ctl(loop_->epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
  loop_->watches.erase(token->second);
  loop_->tokens.erase(token);
}

Reactor::TimerId Reactor::after(Clock::duration delay, Task task) {
  const std::uint64_t id = loop_->next_timer++;
  const auto when = Clock::now() + delay;
  loop_->timers.emplace(std::pair(when, id), std::move(task));
  loop_->due.emplace(id, when);
  return TimerId{id};
}

void Reactor::cancel(TimerId timer) {
  const auto found = loop_->due.find(static_cast<std::uint64_t>(timer));
  if (found == loop_->due.end()) return;
  loop_->timers.erase(std::pair(found->second, found->first));
  loop_->due.erase(found);
}

}  // namespace p2p::engine
