// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "p2p/result.h"

namespace p2p {

/// Starts a thread of the engine. It has all signals blocked, which are for the application's threads, and
/// `name`, of at most 15 letters. kSystem if the system has no thread left.
Result<std::thread> start_thread(std::string name, std::function<void()> run);

/// True on a thread that `start_thread` started: to wait for the engine there may be to wait for oneself.
bool on_engine_thread();

/// Remembers the process in which it was made.
class Birthplace {
 public:
  Birthplace();

  /// True in a child that was forked off that process: the engine's threads are not there, its locks may be
  /// held for ever, and its descriptors are the parent's.
  bool left() const { return forks_so_far.load(std::memory_order_relaxed) != forks_; }

 private:
  /// Between the first process and this one.
  inline static std::atomic<unsigned> forks_so_far{0};

  unsigned forks_;
};

}  // namespace p2p
