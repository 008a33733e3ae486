// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/item_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace p2p::engine {
namespace {

void drop_those_aborted(std::deque<WorkItem>& items, PostUnlockActions& actions) {
  std::erase_if(items, [&](WorkItem& item) {
    const bool aborted = item.request->aborted();
    if (aborted) item.drop(actions);
    return aborted;
  });
}

}  // namespace

void ItemQueue::push_all(std::deque<WorkItem> items) {
  std::move(items.begin(), items.end(), std::back_inserter(items_));
}

std::optional<WorkItem> ItemQueue::next(const Policy& policy, std::uint64_t most_bytes, std::size_t channels,
                                        PostUnlockActions& actions) {
  while (!returned_.empty()) {
    WorkItem item = std::move(returned_.front());
    returned_.pop_front();
    if (!item.request->aborted()) return item;
    item.drop(actions);
  }
  while (!items_.empty()) {
    WorkItem rest = std::move(items_.front());
    items_.pop_front();
    if (rest.request->aborted()) {
      rest.drop(actions);
      continue;
    }
    BatchLimits limits = policy.limits;
    limits.bytes = most_bytes;
    if (items_.empty()) limits.bytes = std::min(limits.bytes, policy.share(rest.batch.bytes, channels));
    WorkItem item = rest.cut(limits);
    if (!rest.empty()) items_.push_back(std::move(rest));
    return item;
  }
  return std::nullopt;
}

std::uint64_t ItemQueue::next_bytes(std::uint64_t most) const {
  if (!returned_.empty()) return returned_.front().batch.bytes;
  return std::min(items_.front().batch.bytes, most);
}

bool ItemQueue::holds(std::uint64_t bytes) const {
  constexpr std::size_t kMany = 256;
  if (size() > kMany) return true;
  std::uint64_t sum = 0;
  for (const WorkItem& item : returned_) sum += item.batch.bytes;
  for (const WorkItem& item : items_) sum += item.batch.bytes;
  return sum >= bytes;
}

void ItemQueue::drop_aborted(PostUnlockActions& actions) {
  drop_those_aborted(items_, actions);
  drop_those_aborted(returned_, actions);
}

void ItemQueue::refuse_all(const Refusal& refusal, PostUnlockActions& actions) {
  for (WorkItem& item : returned_) item.refuse(refusal, actions);
  for (WorkItem& item : items_) item.refuse(refusal, actions);
  items_.clear();
  returned_.clear();
}

}  // namespace p2p::engine
