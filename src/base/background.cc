// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/background.h"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "base/log.h"

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
  if (thread_.joinable()) thread_.join();  // it has nothing left to do but to end
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    log(LogLevel::kWarning, "start the thread {}: {}", name_, error.what());
    tasks_.clear();
    return false;
  }
  running_ = true;
  ::pthread_setname_np(thread_.native_handle(), name_);
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
    task();
  }
}

}  // namespace p2p
