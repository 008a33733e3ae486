// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/stream_wait_queue.h"

#include <iterator>
#include <utility>

namespace p2p::engine {
namespace {

// Dependencies that are polled in one turn, since each asks a driver.
constexpr std::size_t kPolls = 16;

}  // namespace

void StreamWaitQueue::add(WorkItem item, PostUnlockActions& actions) {
  MutexLock lock(mutex_);
  if (refusal_) return item.refuse(*refusal_, actions);
  items_.push_back(std::move(item));
  waiting_.fetch_add(1, std::memory_order_relaxed);
}

std::deque<WorkItem> StreamWaitQueue::poll(PostUnlockActions& actions) {
  std::deque<WorkItem> items;
  {
    MutexLock lock(mutex_);
    items.swap(items_);
  }
  const std::size_t before = items.size();
  std::deque<WorkItem> met;
  std::deque<WorkItem> pending;
  std::deque<WorkItem> unpolled;
  std::size_t polls = 0;
  for (WorkItem& item : items) {
    if (item.request->aborted()) {
      item.drop(actions);
    } else if (polls == kPolls) {
      unpolled.push_back(std::move(item));
    } else {
      ++polls;
      const Result<bool> now = item.request->dependency()->met();
      if (now) {
        (*now ? met : pending).push_back(std::move(item));
      } else {
        item.fail(now.error(), actions);
      }
    }
  }
  // Those that were not polled come first in the next turn.
  unpolled.insert(unpolled.end(), std::make_move_iterator(pending.begin()),
                  std::make_move_iterator(pending.end()));
  waiting_.fetch_sub(before - unpolled.size(), std::memory_order_relaxed);
  put_back(std::move(unpolled), actions);
  return met;
}

// It may have been closed while nobody saw these.
void StreamWaitQueue::put_back(std::deque<WorkItem> items, PostUnlockActions& actions) {
  MutexLock lock(mutex_);
  if (!refusal_) {
    items_.insert(items_.begin(), std::make_move_iterator(items.begin()),
                  std::make_move_iterator(items.end()));
    return;
  }
  waiting_.fetch_sub(items.size(), std::memory_order_relaxed);
  for (WorkItem& item : items) item.refuse(*refusal_, actions);
}

void StreamWaitQueue::close(const Refusal& refusal, PostUnlockActions& actions) {
  MutexLock lock(mutex_);
  refusal_ = refusal;
  waiting_.fetch_sub(items_.size(), std::memory_order_relaxed);
  for (WorkItem& item : items_) item.refuse(refusal, actions);
  items_.clear();
}

}  // namespace p2p::engine
