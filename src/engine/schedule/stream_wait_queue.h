// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <optional>

#include "base/mutex.h"
#include "engine/request/request.h"

namespace p2p::engine {

/// The items of one lane whose gates are not known to be open: they wait apart and take no channel's room.
/// Thread-safe; no lock is held while a dependency is looked at.
class StreamWaitQueue {
 public:
  /// Refuses the item at once if closed.
  void add(WorkItem item, PostUnlockActions& actions);

  /// None waits, or is being looked at.
  bool empty() const { return waiting_.load(std::memory_order_relaxed) == 0; }

  /// Looks at some of the gates and hands out the items whose gates are open. Ends those that are aborted.
  std::deque<WorkItem> look(PostUnlockActions& actions);

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
