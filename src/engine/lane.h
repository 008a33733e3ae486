// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/stripe.h"
#include "engine/submission.h"
#include "p2p/result.h"

namespace p2p::engine {

struct Slot;

/// One transport of one connection: the channels that are up and the parts that wait for them. Channels pull,
/// so that a slow one carries less. Parts take turns, piece by piece, so that a short one does not wait for
/// a long one. A part whose gate is shut waits apart and takes no channel's room; the oldest channel's worker
/// looks at the gates. Thread-safe; the mutex is never held while a channel works.
class Lane {
 public:
  /// `device_copies`: a batch is a matter of starting a copy; to hand it to a worker and to be woken at its
  /// end would take longer than the copy.
  Lane(CutLimits limits, std::chrono::nanoseconds spin, bool device_copies = false)
      : limits_(limits), spin_(spin), device_copies_(device_copies) {}

  /// Adds a channel that is ready.
  void add(std::shared_ptr<Slot> slot);

  /// A channel is gone; its pieces were given back. The last one closes the lane with `error`; one that was
  /// never added leaves it as it is.
  void remove(const Slot& slot, const Error& error, Ended& ended);

  /// Takes the work; small work is done on the caller's thread as far as the channels go. The channel on
  /// which it was started, or will be once its gate is open; null: neither.
  std::shared_ptr<Slot> submit(std::shared_ptr<Part> part, Ended& ended);

  /// Lets in the parts whose gates have opened and drops those that are doomed. For `slot`'s worker, before
  /// it takes pieces; does nothing unless it is this slot that looks.
  void look_at_gates(const Slot& slot, Ended& ended);

  /// True while parts wait for gates and it is for `slot` to look.
  bool awaits_gates(const Slot& slot) const;

  /// The next piece to send; parts that are doomed are dropped on the way.
  std::optional<Piece> take(Ended& ended);

  /// Puts a piece back that a channel had no room for or lost.
  void give_back(Piece piece);

  /// Lets workers look at parts that became doomed.
  void wake_all();

  /// Fails what waits and all that comes, with `error`. First call counts.
  void close(const Error& error, Ended& ended);

  /// Pieces that a lost channel gave back.
  std::uint64_t retried() const { return retried_.load(std::memory_order_relaxed); }
  void count_retry() { retried_.fetch_add(1, std::memory_order_relaxed); }

  std::size_t channels() const;

  /// How many channels there are now, and one of each rail as it describes itself.
  std::string describe() const;

  bool device_copies() const { return device_copies_; }

  /// Moves this lane's channels on from a waiting caller's thread until the transfer is done, nothing has
  /// moved for the spin time, or another thread is at it. Copies by a device are moved by no channel but the
  /// one that started them.
  using Clock = std::chrono::steady_clock;
  void assist(const TransferState& state, Clock::time_point deadline);
  void assist(const TransferState& state, Clock::time_point deadline, const std::shared_ptr<Slot>& started);

  /// When a caller's thread last moved a channel of a lane with copies by devices.
  Clock::time_point called_at() const { return called_at_.load(std::memory_order_relaxed); }
  void note_call(Clock::time_point now) { called_at_.store(now, std::memory_order_relaxed); }

  /// Transfers up to this size are worth the caller's own thread.
  static constexpr std::uint64_t kInlineBytes = std::uint64_t{64} << 10;
  static constexpr std::uint64_t kInlineDeviceBytes = std::uint64_t{4} << 20;

 private:
  using Slots = std::vector<std::shared_ptr<Slot>>;

  std::shared_ptr<const Slots> slots() const;
  void change_slots(const std::function<void(Slots&)>& change) P2P_REQUIRES(mutex_);
  std::shared_ptr<Slot> start_here(const Slots& slots, std::size_t first, Ended& ended);
  static std::shared_ptr<Slot> start_copy_here(const Slots& slots, Ended& ended);
  void drive(std::span<const std::shared_ptr<Slot>> slots, const TransferState& state,
             Clock::time_point deadline);
  void signal(std::uint64_t bytes, const Slots& slots, std::size_t first) const;
  void let_in(std::deque<std::shared_ptr<Part>> open, std::deque<std::shared_ptr<Part>> shut, Ended& ended);
  void drop(const std::shared_ptr<Part>& part, Ended& ended);

  const CutLimits limits_;
  const std::chrono::nanoseconds spin_;
  const bool device_copies_;
  std::atomic<std::uint64_t> retried_{0};
  std::atomic<std::uint32_t> turn_{0};
  std::atomic<Clock::time_point> called_at_{};
  std::atomic<std::size_t> waiting_{0};  // parts whose gates are not known to be open

  mutable Mutex mutex_;
  std::deque<std::shared_ptr<Part>> parts_ P2P_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Part>> gated_ P2P_GUARDED_BY(mutex_);
  std::deque<Piece> returned_ P2P_GUARDED_BY(mutex_);
  std::shared_ptr<const Slots> slots_ P2P_GUARDED_BY(mutex_) = std::make_shared<Slots>();
  std::optional<Error> error_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
