// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "p2p/result.h"

namespace p2p {

/// Starts a thread of the engine, with all signals blocked (they are for the application's threads) and a
/// `name` of at most 15 characters. kSystem if the system has no thread left.
Result<std::thread> start_thread(std::string name, std::function<void()> run);

/// True on a thread that `start_thread` started. Such a thread must not wait for the engine: it may be the
/// one that it waits for.
bool on_engine_thread();

/// Remembers the process in which it was made.
class Birthplace {
 public:
  Birthplace();

  /// True in a process forked from that one. There the engine's threads do not exist, its locks may be held
  /// for ever, and its descriptors are the parent's.
  bool left() const { return forks_so_far.load(std::memory_order_relaxed) != forks_; }

 private:
  /// How many forks lie between the first process and this one.
  inline static std::atomic<unsigned> forks_so_far{0};

  unsigned forks_;
};

}  // namespace p2p
