// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace p2p {

/// Runs tasks one after the other on a thread of its own, which exists only while there are tasks.
/// Thread-safe.
class Background {
 public:
  /// `name` becomes the thread's: at most 15 characters, which the kernel keeps.
  explicit Background(const char* name) : name_(name) {}

  ~Background() { stop(); }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// False if the task was dropped: after `stop`, or because no thread could be started, which is logged.
  bool post(std::function<void()> task);

  /// Waits for the task that runs, drops the others, and refuses further ones. Called by a task it would wait
  /// for itself.
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
