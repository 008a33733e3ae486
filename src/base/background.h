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

  /// Waits for the task that has begun; those that have not are dropped.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// Where the system has no thread left, what waits is dropped, with a line in the log.
  void post(std::function<void()> task);

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
