// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "engine/schedule/channel_runner.h"
#include "engine/schedule/policy.h"

namespace p2p::engine {

/// While it lives a caller drives the runner himself and its thread is not woken for it.
class CallerPolling {
 public:
  explicit CallerPolling(ChannelRunner& runner) : runner_(runner.begin_assist() ? &runner : nullptr) {}
  CallerPolling(CallerPolling&& other) noexcept : runner_(std::exchange(other.runner_, nullptr)) {}
  CallerPolling& operator=(CallerPolling&&) = delete;
  ~CallerPolling() {
    if (runner_ != nullptr) runner_->end_assist();
  }

  /// False: another thread is at it.
  bool begun() const { return runner_ != nullptr; }

 private:
  ChannelRunner* runner_;
};

/// Moves runners on from a waiting caller's thread until `done`, until nothing has moved for the spin time
/// or, unless the policy has him stay, until another thread is at one of them.
void assist(std::span<const std::shared_ptr<ChannelRunner>> runners, const Policy& policy,
            const std::function<bool()>& done, std::chrono::steady_clock::time_point deadline);

}  // namespace p2p::engine
