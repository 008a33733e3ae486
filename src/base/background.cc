// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/background.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "base/log.h"
#include "base/memory_guard.h"
#include "base/thread.h"

namespace p2p {

namespace {

/// What several threads do together. Whoever comes when all is done leaves at once, and touches nothing else.
class SharedWork {
 public:
  SharedWork(std::size_t parts, const std::function<void(std::size_t)>& part) : parts_(parts), part_(part) {}

  void help() {
    {
      const MutexLock lock(mutex_);
      if (over_) return;
      ++helping_;
    }
    work();
    const MutexLock lock(mutex_);
    if (--helping_ == 0) left_.notify_one();
  }

  void finish() {
    work();
    const MutexLock lock(mutex_);
    over_ = true;
    // Not wait(): its symbol is newer than a wheel may ask for.
    while (helping_ != 0) left_.wait_for(mutex_, std::chrono::seconds(1));
  }

 private:
  void work() {
    for (std::size_t i = next_.fetch_add(1); i < parts_; i = next_.fetch_add(1)) part_(i);
  }

  const std::size_t parts_;
  const std::function<void(std::size_t)>& part_;
  std::atomic<std::size_t> next_{0};
  Mutex mutex_;
  std::condition_variable_any left_;
  std::size_t helping_ P2P_GUARDED_BY(mutex_) = 0;
  bool over_ P2P_GUARDED_BY(mutex_) = false;
};

}  // namespace

void Background::stop() {
  std::vector<std::thread> threads;
  std::deque<std::function<void()>> dropped;  // outside the lock: they may own anything
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    threads.swap(threads_);
    dropped.swap(tasks_);
    posted_.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
}

bool Background::post(std::function<void()> task) {
  const MutexLock lock(mutex_);
  if (stop_) return false;
  tasks_.push_back(std::move(task));
  posted_.notify_one();
  if (tasks_.size() <= waiting_ || running_ == most_ || start_one() || running_ != 0) return true;
  tasks_.clear();
  return false;
}

void Background::share(std::size_t parts, const std::function<void(std::size_t)>& part) {
  std::size_t idle = 0;
  if (parts > 1) {
    const MutexLock lock(mutex_);
    const std::size_t free = most_ - running_ + waiting_;
    idle = free - std::min(free, tasks_.size());
  }
  if (idle == 0) {
    for (std::size_t i = 0; i != parts; ++i) part(i);
    return;
  }
  const auto work = std::make_shared<SharedWork>(parts, part);
  for (std::size_t i = std::min(parts - 1, idle); i != 0 && post([work] { work->help(); }); --i) {
  }
  work->finish();
}

bool Background::start_one() {
  for (const std::thread::id id : ended_) {
    const auto it = std::ranges::find(threads_, id, &std::thread::get_id);
    it->join();
    threads_.erase(it);
  }
  ended_.clear();
  auto thread = start_thread(name_, [this] { run(); });
  if (!thread) {
    log(LogLevel::kWarning, "{}", thread.error().message);
    return false;
  }
  threads_.push_back(std::move(*thread));
  ++running_;
  return true;
}

// False: there is none, and this thread ends.
bool Background::await_task() {
  const auto until = std::chrono::steady_clock::now() + linger_;
  ++waiting_;
  while (!stop_ && tasks_.empty()) {
    if (linger_.count() == 0 || posted_.wait_until(mutex_, until) == std::cv_status::timeout) break;
  }
  --waiting_;
  if (!stop_ && !tasks_.empty()) return true;
  --running_;
  ended_.push_back(std::this_thread::get_id());
  return false;
}

void Background::run() {
  for (;;) {
    std::function<void()> task;
    {
      const MutexLock lock(mutex_);
      if (!await_task()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    guard_memory("a task in the background", task);
  }
}

}  // namespace p2p
