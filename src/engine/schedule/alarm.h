// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <utility>

#include "engine/request/post_unlock_actions.h"

namespace p2p::engine {

/// Calls a function when something is due. It is set for the earliest of what it was asked for; whoever is
/// called clears it and asks for the next. One thread at a time sets it; the function is called on any.
class Alarm {
 public:
  using Clock = std::chrono::steady_clock;

  /// Calls a function after a time. Null: the alarm never rings.
  using Later = std::function<void(std::chrono::nanoseconds, std::function<void()>)>;

  explicit Alarm(Later later) : later_(std::move(later)) {}

  void set(Clock::time_point due, std::function<void()> ring, PostUnlockActions& actions) {
    const auto at = at_.load();
    if (!later_ || (at != Clock::time_point{} && at <= due)) return;
    at_.store(due);
    const auto time = std::max(due - Clock::now(), Clock::duration(0));
    actions.call([later = later_, time, ring = std::move(ring)] { later(time, ring); });
  }

  /// It rang.
  void clear() { at_.store({}); }

 private:
  const Later later_;
  std::atomic<Clock::time_point> at_{};  // zero: not set
};

}  // namespace p2p::engine
