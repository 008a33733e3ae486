// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace p2p {

/// Runs tasks one after the other on a thread that is there only while there are some. Thread-safe.
class Background {
 public:
  /// `name`, of at most 15 letters, is the thread's.
  explicit Background(const char* name) : name_(name) {}

  ~Background() { stop(); }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// False, and the task is dropped: it was stopped, or the system has no thread left, which the log says.
  bool post(std::function<void()> task);

  /// Waits for the task that has begun; those that have not are dropped, and nothing is taken any more. Not
  /// from a task.
  void stop();

 private:
  void run();

  const char* const name_;
  Mutex mutex_;
  std::deque<std::function<void()>> tasks_ P2P_GUARDED_BY(mutex_);
  bool running_ P2P_GUARDED_BY(mutex_) = false;
  bool stop_ P2P_GUARDED_BY(mutex_) = false;
  std::thread thread_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p
