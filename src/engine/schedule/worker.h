// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "engine/request/post_unlock_actions.h"
#include "p2p/result.h"

namespace p2p::engine {

class ChannelRunner;

/// One thread that moves its runners: polls them while something moves and for the spin time after, sleeps in
/// epoll otherwise. Whoever holds the mutex is the worker for that time, so that a caller can start small
/// work, and wait for it, without waking a thread. Callbacks run with the mutex released.
class Worker : public std::enable_shared_from_this<Worker> {
 public:
  static Result<std::unique_ptr<Worker>> start(std::chrono::nanoseconds spin, unsigned number);

  /// One without its thread: whoever made it moves its runners himself.
  static Result<std::unique_ptr<Worker>> make(std::chrono::nanoseconds spin);

  /// As `stop`.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Stops and joins the thread. All its runners were stopped. Not on a thread of the engine.
  void stop();

  pthread_t thread() { return thread_.native_handle(); }

  /// Runners reserved: for spreading.
  unsigned load() const { return load_.load(std::memory_order_relaxed); }

  // For its runners; all but `reserve`, `post` and `signal` with the mutex held.

  /// Whoever holds it is the thread for that time.
  Mutex& mutex() { return mutex_; }

  /// Counts a runner, until it is removed.
  void reserve() { load_.fetch_add(1, std::memory_order_relaxed); }

  /// Runs `task` on the thread, with the mutex held. Returns at once.
  void post(std::function<void(PostUnlockActions&)> task);

  /// There is something to do for the runner.
  void signal(std::shared_ptr<ChannelRunner> runner);

  /// Looks at the runner when `fd` is readable; -1: it has none.
  Status add(std::shared_ptr<ChannelRunner> runner, int fd);
  void remove(const ChannelRunner& runner, int fd);
  void arm(ChannelRunner& runner, int fd, bool on);

  /// Looks at the runner until `ChannelRunner::stays_active` says no. On the thread itself.
  void look_at(std::shared_ptr<ChannelRunner> runner) { active_.push_back(std::move(runner)); }

 private:
  Worker(std::chrono::nanoseconds spin, UniqueFd epoll, UniqueFd wake);
  void run();
  void wake();
  bool work(PostUnlockActions& actions) P2P_REQUIRES(mutex_);
  void sleep();
  void activate_ready(const timespec* patience);
  bool left_to_callers();
  void assume_locked() const P2P_ASSERT_HELD(mutex_) {}

  const std::chrono::nanoseconds spin_;
  UniqueFd epoll_;
  UniqueFd wake_;
  std::atomic<unsigned> load_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> asleep_{false};

  Mutex inbox_mutex_;
  std::vector<std::function<void(PostUnlockActions&)>> inbox_ P2P_GUARDED_BY(inbox_mutex_);
  std::vector<std::shared_ptr<ChannelRunner>> signals_ P2P_GUARDED_BY(inbox_mutex_);

  Mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<ChannelRunner>> runners_
      P2P_GUARDED_BY(mutex_);                           // by what epoll says
  std::vector<std::shared_ptr<ChannelRunner>> active_;  // of the thread alone

  std::thread thread_;
};

}  // namespace p2p::engine
