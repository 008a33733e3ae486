// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/assist.h"

#include <vector>

#include "base/relax.h"

namespace p2p::engine {

void assist(std::span<const std::shared_ptr<Slot>> slots, const Policy& policy,
            const std::function<bool()>& done, std::chrono::steady_clock::time_point deadline) {
  using Clock = std::chrono::steady_clock;
  std::vector<Assist> assists;
  assists.reserve(slots.size());
  int busy = 0;
  for (const auto& slot : slots) {
    while (!assists.emplace_back(*slot).begun()) {
      assists.pop_back();
      if ((!policy.stays && ++busy >= Policy::kLooks) || done() || Clock::now() > deadline) return;
      relax();
    }
  }
  Deferred deferred;
  auto now = Clock::now();
  auto moved_at = now;
  while (!done()) {
    bool moved = false;
    for (const auto& slot : slots) {
      const Turn turn = slot->try_turn(deferred, now);
      busy = turn == Turn::kBusy ? busy + 1 : 0;
      if (!policy.stays && busy >= Policy::kLooks) return;
      if (busy != 0) relax();
      moved = moved || turn == Turn::kMoved;
    }
    now = Clock::now();
    if (moved) moved_at = now;
    if (now - moved_at > policy.spin || now > deadline) return;
  }
}

}  // namespace p2p::engine
