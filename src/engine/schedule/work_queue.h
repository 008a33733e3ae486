// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "engine/request/post_unlock_actions.h"
#include "engine/request/request.h"
#include "engine/schedule/policy.h"

namespace p2p::engine {

class ChannelRunner;

/// Where runners take their work from, and which is told when they come and go: a lane. Thread-safe.
class WorkQueue {
 public:
  using Clock = std::chrono::steady_clock;

  explicit WorkQueue(const Policy& policy) : policy_(policy) {}
  virtual ~WorkQueue() = default;
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  const Policy& policy() const { return policy_; }

  /// The runner's channel is ready, or gone; its items were handed back before that.
  virtual void add(std::shared_ptr<ChannelRunner> runner) = 0;
  virtual void remove(const ChannelRunner& runner) = 0;

  /// The next item for the runner to send; those of aborted submissions are dropped on the way. Nothing, too,
  /// if another one would end it so much sooner that this one had better leave it.
  virtual std::optional<WorkItem> take(const ChannelRunner& runner, PostUnlockActions& actions) = 0;

  /// Its channels were not taken away: what a caller brings along may go by one. Needs no lock.
  virtual bool serves() const = 0;

  /// Takes back a item that the runner's channel had no room for, or that a channel lost by `why`.
  virtual void give_back(const ChannelRunner& runner, WorkItem item, PostUnlockActions& actions) = 0;
  virtual void retry(WorkItem item, const Error& why, PostUnlockActions& actions) = 0;

  /// Lets in the items whose gates have opened, if it is for this runner to look. Before it takes any.
  virtual void look_at_gates(const ChannelRunner& runner, PostUnlockActions& actions) = 0;
  virtual bool awaits_gates(const ChannelRunner& runner) const = 0;

  /// Moves the runners on from a waiting caller's thread until `through`, until nothing has moved for the
  /// spin time, or until the deadline: `runner`, and with `all` the others, too, if they are few.
  virtual void assist(const std::function<bool()>& through, Clock::time_point deadline,
                      const std::shared_ptr<ChannelRunner>& runner, bool all) const = 0;

  /// When a caller's thread last moved any of the runners.
  Clock::time_point called_at() const { return called_at_.load(std::memory_order_relaxed); }
  void note_call(Clock::time_point now) { called_at_.store(now, std::memory_order_relaxed); }

 private:
  const Policy policy_;
  std::atomic<Clock::time_point> called_at_{};
};

}  // namespace p2p::engine
