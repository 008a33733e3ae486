// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "p2p/memory.h"
#include "transport/registration.h"

namespace p2p::engine {

/// A peer's region as one connection knows it: first only by its descriptor, then, once what the transports
/// need is there, usable; in the end refused or revoked. Thread-safe.
class RemoteRegion {
 public:
  enum class State : std::uint8_t { kWaiting, kReady, kFailed };

  /// `named`: imported on the peer's word.
  RemoteRegion(RemoteRegionId id, const RegionDescriptor& descriptor, bool named = false)
      : id_(id),
        named_(named),
        descriptor_(descriptor),
        info_{descriptor.region, descriptor.key, nullptr, 0, descriptor.place} {}

  RemoteRegionId id() const { return id_; }
  bool named() const { return named_; }
  const RegionDescriptor& descriptor() const { return descriptor_; }
  State state() const { return state_of(word_.load(std::memory_order_acquire)); }

  /// Base and size as the owner said; null and 0 if it was not asked. Once ready.
  const RegionInfo& info() const { return info_; }

  /// Transport `transport`'s handle; null if it cannot reach the region. Once ready.
  const RemoteKey* key(std::size_t transport) const {
    return transport < keys_.size() ? keys_[transport].get() : nullptr;
  }

  /// Why `key(transport)` is null. Once ready.
  std::string reason(std::size_t transport) const {
    return transport < reasons_.size() ? reasons_[transport] : std::string();
  }

  /// Why it failed. Once failed.
  Error error() const;

  /// Calls `then` once the region is no longer waiting. False, and `then` is dropped, if it is not now.
  bool when_resolved(std::function<void()> then);

  /// Whoever reads the owner's memory before the region is usable counts as a user, and calls `remove_user`.
  /// False if it failed.
  bool begin_import();

  /// kWaiting to kReady. Keys of a region that failed meanwhile are retired.
  void set_ready(const RegionInfo& info, std::vector<std::unique_ptr<RemoteKey>> keys,
                 std::vector<std::string> reasons);

  /// To kFailed, from any state. `through`, if given, is called once no transfer uses the region.
  void set_failed(Error error, std::function<void()> through = nullptr);

  /// A transfer that moves bytes to or from the region. False if it is not ready, or failed. Needs no lock.
  bool add_user();
  void remove_user();

 private:
  // The state and the number of users are one word, so that no user comes once the region has failed.
  static constexpr std::uint64_t kFailedBit = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kReadyBit = std::uint64_t{1} << 62;

  static State state_of(std::uint64_t word) {
    if ((word & kFailedBit) != 0) return State::kFailed;
    return (word & kReadyBit) != 0 ? State::kReady : State::kWaiting;
  }
  static std::uint64_t users_of(std::uint64_t word) { return word & ~(kFailedBit | kReadyBit); }
  bool add_user_if(State state);
  void retire() const;

  const RemoteRegionId id_;
  const bool named_;
  const RegionDescriptor descriptor_;
  RegionInfo info_;
  std::vector<std::unique_ptr<RemoteKey>> keys_;
  std::vector<std::string> reasons_;
  std::atomic<std::uint64_t> word_{0};  // its bits of state are written with the mutex held

  mutable Mutex mutex_;
  Error error_ P2P_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> through_ P2P_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> resolved_ P2P_GUARDED_BY(mutex_);  // called when kWaiting is left
};

}  // namespace p2p::engine
