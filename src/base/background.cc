// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/background.h"

#include <utility>

#include "base/log.h"
#include "base/memory_guard.h"
#include "base/thread.h"

namespace p2p {

void Background::stop() {
  std::thread thread;
  std::deque<std::function<void()>> dropped;  // outside the lock: they may own anything
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    thread = std::move(thread_);
    dropped.swap(tasks_);
  }
  if (thread.joinable()) thread.join();
}

bool Background::post(std::function<void()> task) {
  const MutexLock lock(mutex_);
  if (stop_) return false;
  tasks_.push_back(std::move(task));
  if (running_) return true;
  if (thread_.joinable()) thread_.join();  // it is about to end
  auto thread = start_thread(name_, [this] { run(); });
  if (!thread) {
    log(LogLevel::kWarning, "{}", thread.error().message);
    tasks_.clear();
    return false;
  }
  thread_ = std::move(*thread);
  running_ = true;
  return true;
}

void Background::run() {
  for (;;) {
    std::function<void()> task;
    {
      const MutexLock lock(mutex_);
      if (stop_ || tasks_.empty()) {
        running_ = false;
        return;
      }
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    guard_memory("a task in the background", task);
  }
}

}  // namespace p2p
