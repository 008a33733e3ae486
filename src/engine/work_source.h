// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "engine/deferred.h"
#include "engine/policy.h"
#include "engine/submission.h"

namespace p2p::engine {

class Slot;

/// Where slots take their work from, and which is told when they come and go: a lane. Thread-safe.
class WorkSource {
 public:
  using Clock = std::chrono::steady_clock;

  explicit WorkSource(const Policy& policy) : policy_(policy) {}
  virtual ~WorkSource() = default;
  WorkSource(const WorkSource&) = delete;
  WorkSource& operator=(const WorkSource&) = delete;

  const Policy& policy() const { return policy_; }

  /// The slot's channel is ready, or gone; its pieces were handed back before that.
  virtual void add(std::shared_ptr<Slot> slot) = 0;
  virtual void remove(const Slot& slot) = 0;

  /// The next piece for the slot to send; those of doomed submissions are dropped on the way. Nothing, too,
  /// if another one would end it so much sooner that this one had better leave it.
  virtual std::optional<Piece> take(const Slot& slot, Deferred& deferred) = 0;

  /// Takes back a piece that the slot's channel had no room for, or that a channel lost by `why`.
  virtual void give_back(const Slot& slot, Piece piece, Deferred& deferred) = 0;
  virtual void retry(Piece piece, const Error& why, Deferred& deferred) = 0;

  /// Lets in the pieces whose gates have opened, if it is for this slot to look. Before it takes any.
  virtual void look_at_gates(const Slot& slot, Deferred& deferred) = 0;
  virtual bool awaits_gates(const Slot& slot) const = 0;

  /// Moves the slots on from a waiting caller's thread until `through`, until nothing has moved for the spin
  /// time, or until the deadline: `slot`, and with `all` the others, too, if they are few.
  virtual void assist(const std::function<bool()>& through, Clock::time_point deadline,
                      const std::shared_ptr<Slot>& slot, bool all) const = 0;

  /// When a caller's thread last moved any of the slots.
  Clock::time_point called_at() const { return called_at_.load(std::memory_order_relaxed); }
  void note_call(Clock::time_point now) { called_at_.store(now, std::memory_order_relaxed); }

 private:
  const Policy policy_;
  std::atomic<Clock::time_point> called_at_{};
};

}  // namespace p2p::engine
