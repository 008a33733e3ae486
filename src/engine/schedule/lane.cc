// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/lane.h"

#include <algorithm>
#include <utility>

namespace p2p::engine {
namespace {

/// False: none is.
bool wake_idle(const RunnerList& runners, PostUnlockActions& actions) {
  auto idle = runners.idle();
  if (!idle) return false;
  actions.call([idle = std::move(idle)] { idle->signal(); });
  return true;
}

}  // namespace

std::shared_ptr<ChannelRunner> Lane::submit(WorkItem item, PostUnlockActions& actions) {
  if (const StreamDependency* const dependency = item.request->dependency()) {
    const Result<bool> met = dependency->met();
    if (!met) {
      item.fail(met.error(), actions);
      return nullptr;
    }
    if (!*met) return submit_dependent(std::move(item), actions);
  }
  const std::uint64_t bytes = item.batch.bytes;
  note_bulk(bytes, actions);
  const bool inline_eligible = policy().inline_eligible(item.batch);
  RunnerList runners = admit(item, inline_eligible, actions);
  // While nothing else is under way the same channels serve again: their threads, and the peer's, are more
  // likely to be awake.
  const std::size_t turn = runners.none_inflight() ? 0 : turn_.fetch_add(1, std::memory_order_relaxed);
  if (item.request) {
    const auto runner = runners.at(policy().takes_turns ? turn : 0);
    runner->try_turn(actions, Clock::now(), &item);
    if (!item.request) return runner;
    runners = admit(item, false, actions);
  }
  if (runners.empty()) return want_channels(actions), nullptr;
  if (inline_eligible) {
    if (auto runner = runners.start_here(policy(), turn, actions)) return runner;
  }
  runners.signal(policy().channels_worth(bytes, runners.size()), turn);
  return nullptr;
}

// The channels that there are for it; none if it is refused. It stays with the caller if it may and need not
// pass through the queue.
RunnerList Lane::admit(WorkItem& item, bool may_stay, PostUnlockActions& actions) {
  MutexLock lock(mutex_);
  if (refusal_) {
    item.refuse(*refusal_, actions);
    item.request.reset();
    return {};
  }
  use_.note(item.request->priority());
  if (!may_stay || !starts_at_once(item)) {
    queue_.push(std::exchange(item, {}));
    note_queued();
  }
  return runners_;
}

// Nothing waits, one batch has room for it, and no channel is to be preferred to another.
bool Lane::starts_at_once(const WorkItem& item) const {
  const BatchLimits& limits = policy().limits;
  return !runners_.empty() && queued_.load(std::memory_order_relaxed) == 0 && !runners_.of_several_rails() &&
         !small_.load(std::memory_order_relaxed) && item.batch.segments.size() <= limits.segments &&
         !item.request->paced() && !(use_.several() && use_.yields(item.request->priority(), Clock::now())) &&
         item.batch.bytes <= policy().share(item.batch.bytes, runners_.size()) && !item.request->aborted();
}

void Lane::note_bulk(std::uint64_t bytes, PostUnlockActions& actions) {
  if (bytes < kBulkBytes || !watched_.load(std::memory_order_relaxed)) return;
  if (watched_.exchange(false) && bulk_) actions.call(bulk_);
}

// The first channel's worker polls the dependency, and so does a caller who drives that channel.
std::shared_ptr<ChannelRunner> Lane::submit_dependent(WorkItem item, PostUnlockActions& actions) {
  const bool inline_eligible = policy().inline_eligible(item.batch);
  note_bulk(item.batch.bytes, actions);
  dependent_.add(std::move(item), actions);
  const RunnerList runners = this->runners();
  if (runners.empty()) return want_channels(actions), nullptr;
  runners.first()->signal();
  return inline_eligible ? runners.first() : nullptr;
}

// Of many streams each has a small share of a long path, and some a very small one: whoever waits for the
// transfer waits for the item that such a one has.
std::uint64_t Lane::most_bytes(const ChannelRunner& runner) const {
  const std::uint64_t most = policy().limits.bytes;
  const double rate = runner.pace().rate();
  if (small_.load(std::memory_order_relaxed)) return std::min(most, item_for(rate));
  return runners_.of_several_rails() ? rail_item_for(rate, most) : most;
}

// The other one looks by itself when something of it ends, and is woken if it has nothing under way.
bool Lane::leaves_to_another(const ChannelRunner& runner, Priority priority, PostUnlockActions& actions) {
  if (!runners_.of_several_rails() && !small_.load(std::memory_order_relaxed)) {
    const WorkItem& next = queue_.next(priority);
    const std::uint64_t left = next.batch.bytes;
    return next.request->list().operation == Operation::kRead &&
           std::min(runner.pace().flying(), left) >= policy().read_share(left, runners_.size()) &&
           wake_idle(runners_, actions);
  }
  const auto now = Clock::now();
  Asking asking{.batch = queue_.next_bytes(priority, most_bytes(runner))};
  if (runners_.of_several_rails() && probes(runner.pace(), asking.batch))
    return wake_idle(runners_, actions), true;
  standings_.clear();
  for (const auto& one : runners_) {
    if (one.get() == &runner) asking.channel = standings_.size();
    standings_.push_back(one->pace().standing(now));
  }
  const Least least = least_queued(standings_, asking);
  if (queue_.holds(least.queued)) return false;
  const auto& best = runners_.at(least.best);
  if (!best->pace().has_inflight()) actions.call([best] { best->signal(); });
  return true;
}

// Whoever queues something has a turn himself or signals a runner after it, and so is not missed here.
std::optional<WorkItem> Lane::pull(const ChannelRunner& runner, PostUnlockActions& actions) {
  if (queued_.load() == 0) return std::nullopt;
  if (runner.pace().holds_enough()) return leave(actions), std::nullopt;
  MutexLock lock(mutex_);
  if (runners_.empty()) return std::nullopt;  // at rest: whoever asks is on its way out
  const auto now = use_.several() || queue_.needs_clock() ? Clock::now() : Clock::time_point{};
  const auto choice = queue_.first(now);
  if (!choice) return wake_when_due(actions), std::nullopt;
  BatchLimits limits{most_bytes(runner), policy().limits.segments};
  if (use_.yields(choice->priority, now)) {
    limits.bytes = std::min(limits.bytes, policy().short_batch(runner.pace(), choice->owed));
    if (limits.bytes == 0) return std::nullopt;
  }
  if (leaves_to_another(runner, choice->priority, actions)) return std::nullopt;
  auto item = queue_.take(choice->priority, policy(), {limits, runners_.size(), now}, actions);
  wake_when_due(actions);
  note_queued();
  return item;
}

void Lane::wake_when_due(PostUnlockActions& actions) {
  const auto due = queue_.next_due();
  if (!due) return;
  const auto ring = [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->alarm_.clear();
    self->wake_all();
  };
  alarm_.set(*due, ring, actions);
}

// Who was woken for this work counted on the runner to take more of it. One that has nothing under way itself
// waits for something that they share.
void Lane::give_back(const ChannelRunner& runner, WorkItem item, PostUnlockActions& actions) {
  return_item(std::move(item), actions);
  if (runner.pace().has_inflight()) leave(actions);
}

void Lane::leave(PostUnlockActions& actions) const {
  if (queued_.load() != 0) wake_idle(runners(), actions);
}

void Lane::retry(WorkItem item, const Error& why, PostUnlockActions& actions) {
  retried_.fetch_add(1, std::memory_order_relaxed);
  if (!item.note_loss(Clock::now(), policy().patience)) return item.reroute_stuck(why, actions);
  return_item(std::move(item), actions);
}

void Lane::return_item(WorkItem item, PostUnlockActions& actions) {
  {
    MutexLock lock(mutex_);
    if (refusal_) return item.refuse(*refusal_, actions);
    queue_.put_back(std::move(item));
    note_queued();
    if (!runners_.empty()) return;
  }
  want_channels(actions);
}

bool Lane::polls_streams(const ChannelRunner& runner) const {
  if (dependent_.empty()) return false;
  MutexLock lock(mutex_);
  return !runners_.empty() && runners_.first().get() == &runner;
}

void Lane::admit_ready(const ChannelRunner& runner, PostUnlockActions& actions) {
  if (!polls_streams(runner)) return;
  std::deque<WorkItem> open = dependent_.poll(actions);
  std::uint64_t bytes = 0;
  for (const WorkItem& item : open) bytes += item.batch.bytes;
  RunnerList runners;
  {
    MutexLock lock(mutex_);
    if (refusal_) {
      for (WorkItem& item : open) item.refuse(*refusal_, actions);
      return;
    }
    for (const WorkItem& item : open) use_.note(item.request->priority());
    queue_.push_all(std::move(open));
    note_queued();
    runners = runners_;
  }
  runners.signal(policy().channels_worth(bytes, runners.size()) - 1, 1);  // besides this one
}

void Lane::let_waiter_assist(TransferState& state, const std::shared_ptr<ChannelRunner>& started) {
  if (policy().spin.count() == 0 || state.done() || state.bytes() > policy().assist_bytes) return;
  if (policy().stays && !started) return;
  // He stays at the channel on which it was started, or moves whichever there is.
  state.set_poll(
      [lane = shared_from_this(), weak = std::weak_ptr(started)](const TransferState& one, auto deadline) {
        lane->assist([&one] { return one.done(); }, deadline, weak.lock(), !lane->policy().stays);
      });
}

void Lane::assist(const std::function<bool()>& through, Clock::time_point deadline,
                  const std::shared_ptr<ChannelRunner>& runner, bool all) const {
  runners().assist(runner, all, policy(), through, deadline);
}

}  // namespace p2p::engine
