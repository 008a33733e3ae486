// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/underlying.h"
#include "engine/memory/fence.h"
#include "engine/request/request.h"
#include "engine/schedule/rate_estimator.h"
#include "transport/transport.h"

namespace p2p::engine {

/// The items that are on their way through one channel, by the ids of their batches. Tells the channel's rate
/// and the items' traces.
class InflightTable {
 public:
  using Clock = std::chrono::steady_clock;

  InflightTable(TransferTrace::Way way, RateEstimator& pace) : way_(way), pace_(pace) {}

  /// The id for the next one; nothing if enough are flying. Transports have smaller windows of their own.
  std::optional<BatchId> next_id() {
    if (free_.empty()) {
      if (items_.size() == kMost) return std::nullopt;
      items_.emplace_back();
      free_.push_back(BatchId{items_.size()});
    }
    return free_.back();
  }

  /// Takes an item whose batch has the id that `next_id` gave, and was given to the channel at `posted`.
  void add(WorkItem item, Clock::time_point posted) {
    if (auto* const trace = item.trace()) trace->item_sent(way_, item.batch, posted);
    pace_.sent(item.batch.bytes);
    free_.pop_back();
    WorkItem& place = items_[to_underlying(item.batch.id) - 1];
    place = std::move(item);
  }

  /// The channel is done with it. Nothing if none has this id.
  std::optional<WorkItem> complete(const Completion& completion) {
    auto item = remove(completion.id);
    if (!item) return item;
    // Before who waits for the item sees its end and starts the next one.
    pace_.ended(item->batch.bytes);
    if (auto* const trace = item->trace()) trace->item_ended(way_, completion.id, completion.status);
    return item;
  }

  /// The channel is gone: what it left with the peer's fails once `fence` says that it is through with the
  /// memory, the others now.
  void fail_all(const Error& error, LeavesPeer::Left left, const std::shared_ptr<Fence>& fence,
                PostUnlockActions& actions);

  bool empty() const { return free_.size() == items_.size(); }

  template <class Visitor>
  void for_each(Visitor&& visit) {
    for (WorkItem& item : items_) {
      if (item.request) visit(item);
    }
  }

 private:
  std::optional<WorkItem> remove(BatchId id) {
    const std::uint64_t index = to_underlying(id) - 1;
    if (index >= items_.size() || !items_[index].request) return std::nullopt;
    free_.push_back(id);
    return std::exchange(items_[index], {});
  }

  static constexpr std::size_t kMost = 1024;

  const TransferTrace::Way way_;
  RateEstimator& pace_;
  std::vector<WorkItem> items_;  // by id - 1; no request: free
  std::vector<BatchId> free_;
};

}  // namespace p2p::engine
