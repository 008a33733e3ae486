// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <optional>

#include "base/mutex.h"
#include "engine/request/request.h"

namespace p2p::engine {

/// The items of one lane whose dependencies are pending: they wait apart and use no in-flight slot.
/// Thread-safe; no lock is held while a driver is asked about a stream.
class StreamWaitQueue {
 public:
  /// Refuses the item at once if closed.
  void add(WorkItem item, PostUnlockActions& actions);

  /// None is pending. Needs no lock.
  bool empty() const { return waiting_.load(std::memory_order_relaxed) == 0; }

  /// Polls some of the dependencies and gives the items whose are met. Ends those that are aborted.
  std::deque<WorkItem> poll(PostUnlockActions& actions);

  /// Refuses what waits and all that comes.
  void close(const Refusal& refusal, PostUnlockActions& actions);

 private:
  void put_back(std::deque<WorkItem> items, PostUnlockActions& actions);

  std::atomic<std::size_t> waiting_{0};
  Mutex mutex_;
  std::deque<WorkItem> items_ P2P_GUARDED_BY(mutex_);
  std::optional<Refusal> refusal_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
