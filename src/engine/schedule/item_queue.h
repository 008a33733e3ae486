// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "engine/request/request.h"
#include "engine/schedule/policy.h"

namespace p2p::engine {

/// The items of a lane that wait for a channel: batches that came back go first, then batches are cut from
/// the others in turns, so that a short item does not wait for a long one. Not thread-safe.
class ItemQueue {
 public:
  void push(WorkItem item) { items_.push_back(std::move(item)); }
  void push_all(std::deque<WorkItem> items);

  /// A batch that was cut before.
  void put_back(WorkItem item) { returned_.push_back(std::move(item)); }

  bool empty() const { return items_.empty() && returned_.empty(); }
  std::size_t size() const { return items_.size() + returned_.size(); }

  /// The next batch, of `most_bytes`, or less of the last item so that `channels` share it. Aborted items are
  /// dropped on the way.
  std::optional<WorkItem> next(const Policy& policy, std::uint64_t most_bytes, std::size_t channels,
                               PostUnlockActions& actions);

  /// So many bytes that one would have, of `most` at most. Not of an empty queue.
  std::uint64_t next_bytes(std::uint64_t most) const;

  /// So many bytes wait at least; also said of very many short items, without a look at all.
  bool holds(std::uint64_t bytes) const;

  void drop_aborted(PostUnlockActions& actions);
  void refuse_all(const Refusal& refusal, PostUnlockActions& actions);

 private:
  std::deque<WorkItem> items_;  // not cut up yet
  std::deque<WorkItem> returned_;
};

}  // namespace p2p::engine
