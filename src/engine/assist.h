// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "engine/policy.h"
#include "engine/slot.h"

namespace p2p::engine {

/// While it lives a caller drives the slot himself and its thread is not woken for it.
class Assist {
 public:
  explicit Assist(Slot& slot) : slot_(slot.begin_assist() ? &slot : nullptr) {}
  Assist(Assist&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
  Assist& operator=(Assist&&) = delete;
  ~Assist() {
    if (slot_ != nullptr) slot_->end_assist();
  }

  /// False: another thread is at it.
  bool begun() const { return slot_ != nullptr; }

 private:
  Slot* slot_;
};

/// Moves slots on from a waiting caller's thread until `done`, until nothing has moved for the spin time or,
/// unless the policy has him stay, until another thread is at one of them.
void assist(std::span<const std::shared_ptr<Slot>> slots, const Policy& policy,
            const std::function<bool()>& done, std::chrono::steady_clock::time_point deadline);

}  // namespace p2p::engine
