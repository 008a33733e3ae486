// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/inflight_table.h"

#include "base/error.h"

namespace p2p::engine {
namespace {

/// Fails items whose memory the peer's channel may have been using, and says so if it still may: then their
/// regions stay behind the fence.
Fence::Release fail_behind(const std::shared_ptr<Fence>& fence, std::vector<WorkItem> items,
                           const Error& why) {
  // Tasks are copyable; items are moved.
  auto held = std::make_shared<std::vector<WorkItem>>(std::move(items));
  return [fence = std::weak_ptr(fence), held, why](bool through) {
    PostUnlockActions actions;
    for (WorkItem& item : *held) {
      Error error = why;
      if (!through) {
        const SegmentList& list = item.request->list();
        error.message += list.operation == Operation::kWrite ? kMayStillRead : kMayStillWrite;
        if (const auto still = fence.lock()) {
          for (const auto& region : list.locals) region->stay_behind(still);
        }
      }
      item.fail(std::move(error), actions);
    }
    actions.run();
  };
}

}  // namespace

void InflightTable::fail_all(const Error& error, LeavesPeer::Left left, const std::shared_ptr<Fence>& fence,
                             PostUnlockActions& actions) {
  for_each([&](const WorkItem& item) {
    if (auto* const trace = item.trace()) trace->item_ended(way_, item.batch.id, tl::unexpected(error));
  });
  if (left.end) {
    std::vector<WorkItem> held;
    for (const BatchId id : left.held) {
      if (auto item = remove(id)) held.push_back(std::move(*item));
    }
    auto release = held.empty() ? nullptr : fail_behind(fence, std::move(held), error);
    fence->add(std::move(left.end), std::move(release));
  }
  for_each([&](WorkItem& item) { item.fail(error, actions); });
  items_.clear();
  free_.clear();
  pace_.clear();
}

}  // namespace p2p::engine
