// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "drivers/cuda/window.h"
#include "drivers/socket/local_place.h"
#include "p2p/result.h"
#include "transport/cuda_ipc/memory/key.h"
#include "transport/cuda_ipc/memory/ring_slots.h"
#include "transport/message_ring.h"

namespace p2p::cuda_ipc {

/// A ring that a peer process has leased to this one (ring_leases.h), mapped. Thread-safe.
class PeerRing : public RingSlots {
 public:
  /// Blocks while the owner answers within seconds.
  static Result<std::shared_ptr<PeerRing>> borrow(const Ticket& ticket, const socket::Place& place = {});

  /// Where it begins for kernels and copies of `device`. The first call for a device takes some 50 us.
  Result<std::byte*> reach(int device) const;

  /// The GPU that it is on: its ordinal here, or kHiddenDevice.
  int device() const { return device_; }

  std::uint64_t number() const { return number_; }  ///< at its owner
  const Token& token() const { return token_; }     ///< what names it there besides
  std::uint64_t base() const { return base_; }      ///< where it begins in the owner's address space

  /// A pair of word rings that no other channel has had; none: all are taken.
  std::optional<unsigned> take_words() {
    const unsigned pair = words_taken_.fetch_add(1);
    return pair < kRingWords ? std::optional(pair) : std::nullopt;
  }
  const RingMemory& words() const { return words_; }

 private:
  PeerRing() = default;

  UniqueFd owner_;  // the ring is lent while this is open
  cuda::Window memory_;
  RingMemory words_;
  int device_ = -1;
  std::uint64_t number_ = 0;
  Token token_{};
  std::uint64_t base_ = 0;
  std::atomic<unsigned> words_taken_{0};
  mutable Mutex mutex_;
  mutable std::set<int> allowed_ P2P_GUARDED_BY(mutex_);
};

/// Where a peer's process lends rings of one GPU, and the ring that was borrowed there for all of its
/// regions. Thread-safe.
class RingSource {
 public:
  explicit RingSource(const RingTicket& ticket, socket::Place place = {})
      : ticket_(ticket), place_(std::move(place)) {}

  /// Borrows one unless there is one that serves. Blocks as `PeerRing::borrow` does. Success if it can be
  /// used by these devices.
  Status fetch(const std::set<int>& devices);

  /// The ring, if `device` can use it. Never blocks for long; kUnavailable, saying why, if there is none.
  Result<std::shared_ptr<PeerRing>> ring_for(int device) const;

 private:
  const RingTicket ticket_;
  const socket::Place place_;
  Mutex fetching_;  // taken before the other
  mutable Mutex mutex_;
  std::shared_ptr<PeerRing> ring_ P2P_GUARDED_BY(mutex_);
  Error error_ P2P_GUARDED_BY(mutex_){ErrorCode::kUnavailable, "its owner has not lent memory for that yet"};
};

/// The sources that peers have told of. Thread-safe.
class RingSources {
 public:
  explicit RingSources(socket::Place place = {}) : place_(std::move(place)) {}

  std::shared_ptr<RingSource> of(const RingTicket& ticket);

  /// Those that somebody still has.
  std::vector<std::shared_ptr<RingSource>> all();

 private:
  const socket::Place place_;
  Mutex mutex_;
  std::map<RingTicket, std::weak_ptr<RingSource>> sources_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::cuda_ipc
