// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <optional>

namespace p2p::cuda_ipc {

/// A ring is memory on the GPU of its lender, in slots through which bytes go from one process's private
/// memory to another's. A load takes a run of them: lists of short blocks one, so that many are on their way,
/// being copied at the other end, or being told of; long blocks up to kMostSlots, as a copy engine rests for
/// 4 us after each load, and 16 MiB take 43.
inline constexpr unsigned kRingSlots = 16;
inline constexpr std::uint64_t kRingSlotBytes = std::uint64_t{4} << 20;
inline constexpr std::uint64_t kLentBytes = kRingSlots * kRingSlotBytes;
inline constexpr unsigned kMostSlots = 4;

/// Pairs of word rings that go with it, one for each channel.
inline constexpr unsigned kRingWords = 16;

/// Which slots of a ring are in use. Thread-safe.
class RingSlots {
 public:
  RingSlots() = default;
  virtual ~RingSlots() = default;
  RingSlots(const RingSlots&) = delete;
  RingSlots& operator=(const RingSlots&) = delete;

  /// Slots side by side.
  struct Run {
    unsigned first = 0;
    unsigned count = 0;
    std::uint64_t begin() const { return first * kRingSlotBytes; }  ///< in the ring
    std::uint64_t bytes() const { return count * kRingSlotBytes; }
  };

  /// The longest free run, of `most` slots at most; none: all are taken.
  std::optional<Run> take(unsigned most) {
    std::uint32_t free = free_.load(std::memory_order_acquire);
    while (free != 0) {
      const Run run = longest(free, most);
      if (free_.compare_exchange_weak(free, free & ~mask(run), std::memory_order_acquire)) return run;
    }
    return std::nullopt;
  }

  void give(const Run& run) { free_.fetch_or(mask(run), std::memory_order_release); }

  /// A channel has work for it from now on, or no more.
  void join() { users_.fetch_add(1, std::memory_order_relaxed); }
  void part() { users_.fetch_sub(1, std::memory_order_relaxed); }

  /// Nobody takes more at a time, so that none waits for ever.
  unsigned share() const { return std::max(1U, kRingSlots / users()); }

  /// A user that has no slot and found none free waits until it has one. While others wait, who has just
  /// given one takes none at once.
  void begin_wait() { waiting_.fetch_add(1, std::memory_order_relaxed); }
  void end_wait() { waiting_.fetch_sub(1, std::memory_order_relaxed); }
  bool awaited() const { return waiting_.load(std::memory_order_relaxed) != 0; }

  /// The peer may still copy to or from it, and nobody will be told when it has ended: it is never used
  /// again.
  void lose(const Run& run) { lost_.fetch_add(run.count, std::memory_order_relaxed); }

  /// No slot was lost; and none is left.
  bool whole() const { return lost_.load(std::memory_order_relaxed) == 0; }
  bool lost() const { return lost_.load(std::memory_order_relaxed) == kRingSlots; }

 private:
  unsigned users() const { return std::max(1U, users_.load(std::memory_order_relaxed)); }

  static std::uint32_t mask(const Run& run) { return ((1U << run.count) - 1) << run.first; }

  static Run longest(std::uint32_t free, unsigned most) {
    for (unsigned count = most; count > 1; --count) {
      for (unsigned first = 0; first + count <= kRingSlots; ++first) {
        const Run run{first, count};
        if ((free & mask(run)) == mask(run)) return run;
      }
    }
    return {static_cast<unsigned>(std::countr_zero(free)), 1};
  }

  std::atomic<std::uint32_t> free_{(1U << kRingSlots) - 1};
  std::atomic<unsigned> lost_{0};
  std::atomic<unsigned> users_{0};
  std::atomic<unsigned> waiting_{0};
};

}  // namespace p2p::cuda_ipc
