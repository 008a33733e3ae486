// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/item_queue.h"

#include <algorithm>
#include <utility>

#include "base/underlying.h"

namespace p2p::engine {
namespace {

// A wait that began then is over.
constexpr ItemQueue::Clock::time_point kLongAgo{ItemQueue::Clock::duration(1)};

bool is_owed(ItemQueue::Clock::time_point since, ItemQueue::Clock::time_point now) {
  return since != ItemQueue::Clock::time_point{} && now - since >= ItemQueue::kPatience;
}

}  // namespace

template <class Visitor>
void ItemQueue::for_each_list(Visitor&& visit) {
  for (const auto& one : classes_) {
    if (!one) continue;
    visit(one->returned);
    visit(one->items);
  }
  visit(resting_);
}

ItemQueue::Waiting& ItemQueue::waiting(const WorkItem& item) {
  auto& one = classes_[to_underlying(item.request->priority())];
  if (!one) one = std::make_unique<Waiting>();
  return *one;
}

void ItemQueue::push_all(std::deque<WorkItem> items) {
  for (WorkItem& item : items) push(std::move(item));
}

void ItemQueue::put_back(WorkItem item) {
  Waiting& its = waiting(item);
  if (std::exchange(its.granted, false)) its.since = kLongAgo;
  its.returned.push_back(std::move(item));
}

std::size_t ItemQueue::size() const {
  std::size_t sum = resting_.size();
  for (const auto& one : classes_) sum += one ? one->items.size() + one->returned.size() : 0;
  return sum;
}

bool ItemQueue::needs_clock() const {
  if (!resting_.empty()) return true;
  bool any = false;
  for (const auto& one : classes_) {
    if (one && !one->empty() && std::exchange(any, true)) return true;
  }
  return false;
}

std::optional<ItemQueue::Choice> ItemQueue::first(Clock::time_point now) {
  if (!resting_.empty()) resume(now);
  std::size_t top = 0;
  while (top != kClasses && !waits(top)) ++top;
  if (top == kClasses) return std::nullopt;
  std::size_t owed = top;
  for (std::size_t i = top + 1; i != kClasses; ++i) {
    if (!waits(i)) continue;
    Clock::time_point& since = classes_[i]->since;
    if (since == Clock::time_point{}) since = now;
    if (is_owed(since, now)) owed = i;
  }
  return Choice{static_cast<Priority>(owed), owed != top};
}

std::optional<WorkItem> ItemQueue::take(Priority priority, const Policy& policy, Cut cut,
                                        PostUnlockActions& actions) {
  auto& its = *classes_[to_underlying(priority)];
  its.granted = is_owed(std::exchange(its.since, Clock::time_point{}), cut.now);
  while (!its.returned.empty()) {
    WorkItem item = std::move(its.returned.front());
    its.returned.pop_front();
    if (!item.request->aborted()) return item;
    item.drop(actions);
  }
  while (!its.items.empty()) {
    WorkItem all = std::move(its.items.front());
    its.items.pop_front();
    if (all.request->aborted()) {
      all.drop(actions);
      continue;
    }
    BatchLimits limits = cut.limits;
    if (its.items.empty()) limits.bytes = std::min(limits.bytes, policy.share(all.batch.bytes, cut.channels));
    if (all.request->paced()) limits.bytes = std::min(limits.bytes, all.request->burst());
    WorkItem item = all.cut(limits);
    if (all.request->paced()) {
      rest(std::move(all), item.batch.bytes, cut.now == Clock::time_point{} ? Clock::now() : cut.now);
    } else if (!all.empty()) {
      its.items.push_back(std::move(all));
    }
    return item;
  }
  return std::nullopt;
}

void ItemQueue::rest(WorkItem item, std::uint64_t spent, Clock::time_point now) {
  item.due = item.request->spend(spent, now);
  if (item.empty()) return;
  if (item.due > now) {
    resting_.push_back(std::move(item));
  } else {
    push(std::move(item));
  }
}

const WorkItem& ItemQueue::next(Priority priority) const {
  const auto& its = *classes_[to_underlying(priority)];
  return its.returned.empty() ? its.items.front() : its.returned.front();
}

std::uint64_t ItemQueue::next_bytes(Priority priority, std::uint64_t most) const {
  const auto& its = *classes_[to_underlying(priority)];
  if (!its.returned.empty()) return its.returned.front().batch.bytes;
  return std::min(its.items.front().batch.bytes, most);
}

bool ItemQueue::holds(std::uint64_t bytes) const {
  constexpr std::size_t kMany = 256;
  if (size() > kMany) return true;
  std::uint64_t sum = 0;
  for (const auto& one : classes_) {
    if (!one) continue;
    for (const WorkItem& item : one->returned) sum += item.batch.bytes;
    for (const WorkItem& item : one->items) sum += item.batch.bytes;
  }
  return sum >= bytes;
}

std::optional<ItemQueue::Clock::time_point> ItemQueue::next_due() const {
  const auto first = std::ranges::min_element(resting_, {}, &WorkItem::due);
  return first == resting_.end() ? std::nullopt : std::optional(first->due);
}

// Those that are due or aborted.
void ItemQueue::resume(Clock::time_point now) {
  std::erase_if(resting_, [&](WorkItem& item) {
    if (item.due > now && !item.request->aborted()) return false;
    push(std::move(item));
    return true;
  });
}

void ItemQueue::drop_aborted(PostUnlockActions& actions) {
  for_each_list([&](auto& items) {
    std::erase_if(items, [&](WorkItem& item) {
      const bool aborted = item.request->aborted();
      if (aborted) item.drop(actions);
      return aborted;
    });
  });
}

void ItemQueue::refuse_all(const Refusal& refusal, PostUnlockActions& actions) {
  for_each_list([&](auto& items) {
    for (WorkItem& item : items) item.refuse(refusal, actions);
    items.clear();
  });
}

}  // namespace p2p::engine
