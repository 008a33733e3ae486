// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <optional>

#include "base/mutex.h"
#include "engine/submission.h"

namespace p2p::engine {

/// The pieces of one lane whose gates are not known to be open: they wait apart and take no channel's room.
/// Thread-safe; no lock is held while a gate is looked at.
class GatedPieces {
 public:
  /// Refuses the piece at once if closed.
  void add(Piece piece, Deferred& deferred);

  /// None waits, or is being looked at.
  bool empty() const { return waiting_.load(std::memory_order_relaxed) == 0; }

  /// Looks at some of the gates and hands out the pieces whose gates are open. Ends those that are doomed.
  std::deque<Piece> look(Deferred& deferred);

  /// Refuses what waits and all that comes.
  void close(const Refusal& refusal, Deferred& deferred);

 private:
  void put_back(std::deque<Piece> pieces, Deferred& deferred);

  std::atomic<std::size_t> waiting_{0};
  Mutex mutex_;
  std::deque<Piece> pieces_ P2P_GUARDED_BY(mutex_);
  std::optional<Refusal> refusal_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
