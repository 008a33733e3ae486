// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/background.h"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "base/log.h"

namespace p2p {

Background::~Background() {
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void Background::post(std::function<void()> task) {
  const MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  if (running_ || stop_) return;
  if (thread_.joinable()) thread_.join();  // it has nothing left to do but to end
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    log(LogLevel::kWarning, "start the thread {}: {}; what it was to do is left out", name_, error.what());
    tasks_.clear();
    return;
  }
  running_ = true;
  ::pthread_setname_np(thread_.native_handle(), name_);
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
