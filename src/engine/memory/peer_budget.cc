// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/memory/peer_budget.h"

#include "base/error.h"

namespace p2p::engine {

bool PeerBudget::take(std::uint64_t bytes) {
  std::uint64_t taken = taken_.load(std::memory_order_relaxed);
  do {
    if (bytes > most_ || taken > most_ - bytes) return false;
  } while (!taken_.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed));
  return true;
}

Status PeerShare::set(std::uint64_t bytes) {
  const std::uint64_t needed = bytes <= kStep ? 0 : (bytes - 1) / kStep * kStep;
  if (needed > taken_) {
    if (!budget_->take(needed - taken_)) {
      return fail(ErrorCode::kUnavailable, "keep {} bytes for a peer: all peers have {} of {} already", bytes,
                  budget_->taken(), budget_->most());
    }
    taken_ = needed;
  } else if (needed == 0 || taken_ - needed > kStep) {  // not at every change
    budget_->give_back(taken_ - needed);
    taken_ = needed;
  }
  bytes_ = bytes;
  return {};
}

}  // namespace p2p::engine
