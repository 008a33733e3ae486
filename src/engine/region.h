// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "drivers/cuda/place.h"
#include "p2p/memory.h"
#include "transport/transport.h"

namespace p2p::engine {

class RegionTable;

/// The transports of an endpoint in order of preference, with the reason where one cannot be used.
struct TransportSlot {
  std::shared_ptr<Transport> transport;
  std::string reason;  ///< empty: usable
};
using TransportList = std::vector<TransportSlot>;

/// One registered range: its registrations with the transports and those who use it. Thread-safe.
/// Shared by the application's MemoryRegion, the table and the transfers under way.
class Region {
 public:
  Region(std::shared_ptr<RegionTable> table, const RegionInfo& info, Incarnation incarnation,
         std::vector<std::shared_ptr<Registration>> registrations, std::vector<std::string> reasons);

  const RegionInfo& info() const { return info_; }
  Incarnation incarnation() const { return incarnation_; }

  /// The registration with transport number `transport`; null if that transport cannot take this memory.
  const std::shared_ptr<Registration>& registration(std::size_t transport) const {
    return registrations_[transport];
  }

  /// Why `registration(transport)` is null.
  const std::string& reason(std::size_t transport) const { return reasons_[transport]; }

  /// False once device memory was freed since it was registered.
  bool alive() const;

  /// kNotFound once some of device memory was freed or mapped anew since it was registered. Takes as long as
  /// the memory is large.
  Status check_whole() const;

  /// Transfers that read or write the memory on this side.
  void add_user() { users_.fetch_add(1, std::memory_order_relaxed); }
  void remove_user();

  /// Calls `tell` when the region is revoked, so that a peer that imported it can be told; `tell` calls its
  /// argument once the peer is through with the memory. False if it is revoked already.
  using Tell = std::function<void(std::function<void()> through)>;
  bool on_revoke(Tell tell);

  /// How long a dropped region waits for peers to let go of it.
  std::chrono::nanoseconds revoke_timeout() const;

  /// Ends all access by peers, who are told, without waiting for their answers. The region stays known here.
  /// False if that was done before.
  bool withhold();

  /// The same, and takes the region out of the table; idempotent. Returns false if a peer had not answered by
  /// `deadline`.
  bool revoke(std::chrono::steady_clock::time_point deadline);

  /// Waits until no local transfer uses the memory.
  bool wait_unused(std::chrono::steady_clock::time_point deadline);

 private:
  std::shared_ptr<RegionTable> table_;
  RegionInfo info_;
  Incarnation incarnation_;
  std::vector<std::shared_ptr<Registration>> registrations_;
  std::vector<std::string> reasons_;
  cuda::Allocation allocation_;  // of device memory
  std::atomic<std::uint32_t> users_{0};

  Mutex mutex_;
  bool revoked_ P2P_GUARDED_BY(mutex_) = false;
  std::vector<Tell> tells_ P2P_GUARDED_BY(mutex_);
  // Peers that have not answered yet; shared with their answers, which may outlive the region.
  std::shared_ptr<std::atomic<std::uint32_t>> unanswered_ = std::make_shared<std::atomic<std::uint32_t>>(0);
};

/// Regions that a transfer will use once it can be started, in use from now on: they may be taken back by the
/// application meanwhile.
class HeldRegions {
 public:
  HeldRegions() = default;
  HeldRegions(HeldRegions&&) noexcept = default;
  HeldRegions& operator=(HeldRegions&&) = delete;
  ~HeldRegions();

  /// Once, however often it is given.
  void add(const std::shared_ptr<Region>& region);

  /// Null if it is none of them.
  std::shared_ptr<Region> find(RegionId id) const;

 private:
  std::unordered_map<std::uint32_t, std::shared_ptr<Region>> regions_;  // by id
};

/// The regions of one endpoint, found by id. Thread-safe. Outlives the endpoint while a region lives.
class RegionTable : public std::enable_shared_from_this<RegionTable> {
 public:
  RegionTable(TransportList transports, Incarnation incarnation, std::chrono::nanoseconds revoke_timeout);

  const TransportList& transports() const { return transports_; }
  Incarnation incarnation() const { return incarnation_; }

  /// How long a dropped region waits for peers to let go of it.
  std::chrono::nanoseconds revoke_timeout() const { return revoke_timeout_; }

  /// Registers with every usable transport; fails if none takes the memory.
  Result<std::shared_ptr<Region>> add(void* data, std::size_t size, MemoryPlace place);

  /// Null if there is none (any more).
  std::shared_ptr<Region> find(RegionId id) const;

  /// The region if `key` is its key; kNotFound or kPermissionDenied otherwise.
  Result<std::shared_ptr<Region>> find(RegionId id, const RegionKey& key) const;

  void remove(RegionId id);

 private:
  const TransportList transports_;
  const Incarnation incarnation_;
  const std::chrono::nanoseconds revoke_timeout_;
  std::atomic<std::uint32_t> next_{1};
  mutable std::shared_mutex mutex_;
  std::unordered_map<std::uint32_t, std::shared_ptr<Region>> regions_;
};

}  // namespace p2p::engine
