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
#include "engine/slot.h"

namespace p2p::engine {

/// One thread that moves its slots: polls them while something moves and for the spin time after, sleeps in
/// epoll otherwise. Whoever holds the mutex is the worker for that time, so that a caller can start small
/// work, and wait for it, without waking a thread. Callbacks run with the mutex released.
class Worker final : public SlotThread {
 public:
  static Result<std::unique_ptr<Worker>> start(std::chrono::nanoseconds spin, unsigned number);

  /// Stops and joins the thread. All its slots were stopped.
  ~Worker() override;

  pthread_t thread() { return thread_.native_handle(); }

  /// Slots reserved: for spreading.
  unsigned load() const { return load_.load(std::memory_order_relaxed); }

  // For its slots.
  Mutex& mutex() override { return mutex_; }
  void reserve() override { load_.fetch_add(1, std::memory_order_relaxed); }
  void post(std::function<void(Deferred&)> task) override;
  void signal(std::shared_ptr<Slot> slot) override;
  Status add(std::shared_ptr<Slot> slot, int fd) override;
  void remove(const Slot& slot, int fd) override;
  void arm(Slot& slot, int fd, bool on) override;
  void look_at(std::shared_ptr<Slot> slot) override { active_.push_back(std::move(slot)); }

 private:
  Worker(std::chrono::nanoseconds spin, UniqueFd epoll, UniqueFd wake);
  void run();
  void wake();
  bool work(Deferred& deferred) P2P_REQUIRES(mutex_);
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
  std::vector<std::function<void(Deferred&)>> inbox_ P2P_GUARDED_BY(inbox_mutex_);
  std::vector<std::shared_ptr<Slot>> signals_ P2P_GUARDED_BY(inbox_mutex_);

  Mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<Slot>> slots_ P2P_GUARDED_BY(mutex_);  // by what epoll says
  std::vector<std::shared_ptr<Slot>> active_;  // of the thread alone

  std::thread thread_;
};

}  // namespace p2p::engine
