// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/caller_polling.h"

#include <vector>

#include "base/relax.h"

namespace p2p::engine {

void assist(std::span<const std::shared_ptr<ChannelRunner>> runners, const Policy& policy,
            const std::function<bool()>& done, std::chrono::steady_clock::time_point deadline) {
  using Clock = std::chrono::steady_clock;
  std::vector<CallerPolling> assists;
  assists.reserve(runners.size());
  int busy = 0;
  for (const auto& runner : runners) {
    while (!assists.emplace_back(*runner).begun()) {
      assists.pop_back();
      if ((!policy.stays && ++busy >= Policy::kLooks) || done() || Clock::now() > deadline) return;
      relax();
    }
  }
  PostUnlockActions actions;
  auto now = Clock::now();
  auto moved_at = now;
  while (!done()) {
    bool moved = false;
    for (const auto& runner : runners) {
      const Turn turn = runner->try_turn(actions, now);
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
