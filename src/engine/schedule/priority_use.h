// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <span>

#include "base/underlying.h"
#include "p2p/transfer.h"

namespace p2p::engine {

/// When the classes of priority of a lane were last used: lower ones keep their queues short for a while
/// after that. While none but the default is used no clock is read. Not thread-safe.
class PriorityUse {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::seconds kYieldTime{10};

  void note(Priority priority) {
    if (priority != Priority::kNormal) several_ = true;
    if (several_) used_at_[to_underlying(priority)] = Clock::now();
  }

  /// Another than the default one was used.
  bool several() const { return several_; }

  /// A higher class was used lately, and should find little before it when it comes again.
  bool yields(Priority priority, Clock::time_point now) const {
    return std::ranges::any_of(std::span(used_at_).first(to_underlying(priority)),
                               [now](auto at) { return at != Clock::time_point{} && now - at < kYieldTime; });
  }

 private:
  bool several_ = false;
  std::array<Clock::time_point, 3> used_at_{};  // by Priority; zero: not since others were
};

}  // namespace p2p::engine
