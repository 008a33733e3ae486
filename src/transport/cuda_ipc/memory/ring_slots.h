// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <optional>

namespace p2p::cuda_ipc {

/// A ring is memory on the GPU of its lender, in slots through which bytes go from one process's private
/// memory to another's: one on its way over NVLink, one that waits for that, and one that is copied at its
/// other end. A copy engine rests for 4 us after each slot, which takes 43.
inline constexpr unsigned kRingSlots = 3;
inline constexpr std::uint64_t kRingSlotBytes = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kLentBytes = kRingSlots * kRingSlotBytes;

/// Pairs of word rings that go with it, one for each channel.
inline constexpr unsigned kRingWords = 16;

/// Which slots of a ring are in use. Thread-safe.
class RingSlots {
 public:
  RingSlots() = default;
  virtual ~RingSlots() = default;
  RingSlots(const RingSlots&) = delete;
  RingSlots& operator=(const RingSlots&) = delete;

  std::optional<unsigned> take() {
    std::uint32_t free = free_.load(std::memory_order_acquire);
    while (free != 0) {
      const auto slot = static_cast<unsigned>(std::countr_zero(free));
      if (!free_.compare_exchange_weak(free, free & ~(1U << slot), std::memory_order_acquire)) continue;
      turns_.fetch_add(1, std::memory_order_relaxed);
      return slot;
    }
    return std::nullopt;
  }

  void give(unsigned slot) { free_.fetch_or(1U << slot, std::memory_order_release); }

  /// A channel has work for it from now on, or no more.
  void join() { users_.fetch_add(1, std::memory_order_relaxed); }
  void part() { users_.fetch_sub(1, std::memory_order_relaxed); }

  /// As many may one of them take, so that none waits for ever.
  unsigned share() const {
    const unsigned users = std::max(1U, users_.load(std::memory_order_relaxed));
    return (kRingSlots + users - 1) / users;
  }

  /// Where there are more of them than slots they take turns: `turn` is what `turns` was when one last took a
  /// slot, 0 before.
  bool may_take(std::uint64_t turn) const {
    const unsigned users = users_.load(std::memory_order_relaxed);
    return users <= kRingSlots || turn == 0 || turns() - turn >= users - kRingSlots;
  }
  std::uint64_t turns() const { return turns_.load(std::memory_order_relaxed); }

  /// The peer may still copy to or from it, and nobody will be told when it has ended: it is never used
  /// again.
  void lose(unsigned /*slot*/) { lost_.fetch_add(1, std::memory_order_relaxed); }

  /// No slot was lost; and none is left.
  bool whole() const { return lost_.load(std::memory_order_relaxed) == 0; }
  bool lost() const { return lost_.load(std::memory_order_relaxed) == kRingSlots; }

 private:
  std::atomic<std::uint32_t> free_{(1U << kRingSlots) - 1};
  std::atomic<unsigned> lost_{0};
  std::atomic<unsigned> users_{0};
  std::atomic<std::uint64_t> turns_{0};
};

}  // namespace p2p::cuda_ipc
