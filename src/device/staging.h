// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "device/job.h"
#include "device/staging_pool.h"
#include "p2p/memory.h"
#include "p2p/result.h"

namespace p2p::device {

/// A run of bytes that is staged; `device` -1 is host memory.
struct StagedPiece {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  int device = -1;

  static StagedPiece of(std::byte* data, std::uint64_t bytes, MemoryPlace place) {
    return {data, bytes, place.kind == MemoryKind::kCuda ? place.device : -1};
  }
};

/// One stream's share of a StagingPool: slots through which lists of device memory (and host memory among it)
/// go to the host and back. Each slot carries one list at a time, and any number of slots is under way at
/// once. Used by one thread at a time.
class Staging {
 public:
  /// What slots are for; each use has a number of its own.
  enum class Use : std::uint8_t {
    kDeparture,  ///< bytes that leave
    kArrival,    ///< bytes that a peer sends, for which there has to be room
    kAnswer,     ///< bytes that were asked for
  };
  static constexpr std::size_t kUses = 3;

  /// Slots at most, by use.
  using Most = std::array<std::size_t, kUses>;

  /// What one stream may have. The pool's copiers hold as many lists as it has slots, so that one is free.
  struct Share {
    Most slots{};
    std::uint64_t standby_bytes = 0;  ///< single runs of at most this by the kernel that stands by

    constexpr std::size_t all_slots() const { return slots[0] + slots[1] + slots[2]; }
  };

  class Slot {
   public:
    std::byte* data() const { return data_; }

    /// Never blocks; true also when nothing was started. The bytes are visible to whoever learns of it.
    bool finished() { return copies_.finished(); }

    /// How the last list ended, once finished.
    const Status& status() const { return copies_.status(); }

   private:
    friend class Staging;
    std::byte* data_ = nullptr;  // null while nobody has it
    Use use_ = Use::kDeparture;
    Job copies_;
  };

  /// What the stream needs is made at once if it is `expected` to stage, else with its first slot.
  Staging(std::shared_ptr<StagingPool> pool, const Share& share, bool expected);

  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// From now on it is expected to. Thread-safe.
  void expect();

  /// Waits for copies under way; nothing may be started or asked for after it.
  void close() { copiers_.give_back(); }

  /// Null while all are in use, here or by other streams; a stream that has few for this use, and each
  /// arrival, gets one all the same.
  Result<Slot*> take(Use use);
  void give_back(Slot& slot);

  /// Starts to copy the pieces into the slot, back to back.
  void pack(Slot& slot, std::span<const StagedPiece> pieces) { start(slot, pieces, true); }

  /// Starts to copy what the slot holds to the pieces.
  void unpack(Slot& slot, std::span<const StagedPiece> pieces) { start(slot, pieces, false); }

 private:
  void start(Slot& slot, std::span<const StagedPiece> pieces, bool pack);

  const std::shared_ptr<StagingPool> pool_;
  const Share share_;
  std::atomic<bool> counted_ = false;  // among the pool's streams
  std::array<std::size_t, kUses> held_{};
  std::deque<Slot> slots_;
  std::vector<Slot*> spare_;
  OwnCopiers copiers_;
};

}  // namespace p2p::device
