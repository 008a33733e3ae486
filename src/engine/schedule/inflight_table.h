// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/underlying.h"
#include "engine/request/request.h"

namespace p2p::engine {

/// The items that are on their way through one channel, by the ids of their batches.
class InflightTable {
 public:
  /// The id for the next one; nothing if enough are flying. Transports have smaller windows of their own.
  std::optional<BatchId> next_id() {
    if (free_.empty()) {
      if (items_.size() == kMost) return std::nullopt;
      items_.emplace_back();
      free_.push_back(BatchId{items_.size()});
    }
    return free_.back();
  }

  /// Takes a item whose batch has the id that `next_id` gave.
  void add(WorkItem item) {
    free_.pop_back();
    WorkItem& place = items_[to_underlying(item.batch.id) - 1];
    place = std::move(item);
  }

  /// Nothing if none has this id.
  std::optional<WorkItem> remove(BatchId id) {
    const std::uint64_t index = to_underlying(id) - 1;
    if (index >= items_.size() || !items_[index].request) return std::nullopt;
    free_.push_back(id);
    return std::exchange(items_[index], {});
  }

  bool empty() const { return free_.size() == items_.size(); }

  template <class Visitor>
  void for_each(Visitor&& visit) {
    for (WorkItem& item : items_) {
      if (item.request) visit(item);
    }
  }

  void clear() {
    items_.clear();
    free_.clear();
  }

 private:
  static constexpr std::size_t kMost = 1024;

  std::vector<WorkItem> items_;  // by id - 1; no request: free
  std::vector<BatchId> free_;
};

}  // namespace p2p::engine
