// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace p2p {

/// Runs tasks on threads of its own, which exist only while there are tasks. With one thread, which is the
/// default, they run one after the other. Thread-safe.
class Background {
 public:
  /// `name` becomes the thread's: at most 15 characters, which the kernel keeps.
  explicit Background(const char* name) : Background(name, 1, {}) {}

  /// With up to `most` threads, each of which waits for tasks for as long as `linger` before it ends.
  Background(const char* name, std::size_t most, std::chrono::milliseconds linger)
      : name_(name), most_(most), linger_(linger) {}

  ~Background() { stop(); }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// False if the task was dropped: after `stop`, or because no thread could be started, which is logged.
  bool post(std::function<void()> task);

  /// Calls `part` with each number below `parts`, on this thread and on those that have nothing else to do.
  /// All have returned when it does. `part` must not throw.
  void share(std::size_t parts, const std::function<void(std::size_t)>& part);

  /// Waits for the tasks that run, drops the others, and refuses further ones. Called by a task it would wait
  /// for itself.
  void stop();

 private:
  void run();
  bool await_task() P2P_REQUIRES(mutex_);
  bool start_one() P2P_REQUIRES(mutex_);

  const char* const name_;
  const std::size_t most_;
  const std::chrono::milliseconds linger_;
  Mutex mutex_;
  std::condition_variable_any posted_;
  std::deque<std::function<void()>> tasks_ P2P_GUARDED_BY(mutex_);
  std::size_t running_ P2P_GUARDED_BY(mutex_) = 0;  // threads that have not decided to end
  std::size_t waiting_ P2P_GUARDED_BY(mutex_) = 0;  // of these, for a task
  bool stop_ P2P_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ P2P_GUARDED_BY(mutex_);
  std::vector<std::thread::id> ended_ P2P_GUARDED_BY(mutex_);  // of these, or about to end
};

}  // namespace p2p
