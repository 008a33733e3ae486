// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "engine/memory/region_importer.h"
#include "engine/memory/region_keys.h"
#include "p2p/memory.h"
#include "transport/transport.h"

namespace p2p::engine {

class Fence;
class RegionTable;

/// The transports of an endpoint in order of preference, with the reason where one cannot be used.
struct TransportSlot {
  std::shared_ptr<Transport> transport;
  std::optional<std::string> unusable{};  ///< why, if it is
};
using TransportList = std::vector<TransportSlot>;

/// One registered range: its registrations with the transports and those who use it. Thread-safe.
/// Shared by the application's MemoryRegion, the table, the transfers under way and, once it was taken back,
/// the peers that have not said yet that they are through with it.
class Region : public std::enable_shared_from_this<Region> {
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
  std::string reason(std::size_t transport) const;

  /// False once the memory was freed since it was registered, as far as its transports can tell.
  bool alive() const;

  /// kNotFound once some of device memory was freed or mapped anew since it was registered. Takes as long as
  /// the memory is large.
  Status check_whole() const;

  /// Transfers that read or write the memory on this side.
  void add_user() { users_.fetch_add(1, std::memory_order_relaxed); }
  void remove_user();

  /// Whom to tell when the region is revoked, once however often it is added. False if it is revoked already.
  bool add_importer(const std::shared_ptr<RegionImporter>& importer);

  /// The connection to that peer is over; what is beyond `fence` may still use the memory.
  void remove_importer(const RegionImporter& importer, const std::shared_ptr<Fence>& fence);

  /// A transfer that has failed here has left a peer beyond `fence` that may still use the memory.
  void stay_behind(const std::shared_ptr<Fence>& fence);

  /// A peer is through with the memory, as far as its fence does not say otherwise.
  void answered();

  /// How long a dropped region waits for peers to let go of it.
  std::chrono::nanoseconds revoke_timeout() const;

  /// See RegionTable::check_process.
  Status check_process() const;

  /// Ends all access by peers, who are told, without waiting for their answers. The region stays known here.
  /// False if that was done before.
  bool withhold();

  /// The same, and takes the region out of the table; may be repeated. False if an access of a peer was not
  /// over, a peer had not answered, or was not past its fence, by `deadline`.
  bool revoke(std::chrono::steady_clock::time_point deadline);

  /// The same for an application that does not ask what came of it: waits for `revoke_timeout`, but on an
  /// engine thread, which others wait for, not at all. What is not over then keeps the registrations.
  void drop();

  /// Waits until no local transfer uses the memory.
  bool wait_unused(std::chrono::steady_clock::time_point deadline);

 private:
  bool wait_fences(std::chrono::steady_clock::time_point deadline);

  std::shared_ptr<RegionTable> table_;
  RegionInfo info_;
  Incarnation incarnation_;
  std::vector<std::shared_ptr<Registration>> registrations_;
  std::vector<std::string> reasons_;  // empty if every usable transport took the memory
  std::atomic<std::uint32_t> users_{0};
  std::atomic<std::uint32_t> unanswered_{0};  // futex: peers that have not answered yet

  Mutex mutex_;
  bool revoked_ P2P_GUARDED_BY(mutex_) = false;
  std::map<const RegionImporter*, std::weak_ptr<RegionImporter>> importers_ P2P_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Fence>> fences_ P2P_GUARDED_BY(mutex_);  // of connections that are over
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
  std::shared_ptr<Region> first_;                                      // mostly the only one
  std::unordered_map<std::uint32_t, std::shared_ptr<Region>> others_;  // by id
};

/// The regions of one endpoint, found by id. Thread-safe. Outlives the endpoint while a region lives.
class RegionTable : public std::enable_shared_from_this<RegionTable> {
 public:
  RegionTable(TransportList transports, Incarnation incarnation, std::chrono::nanoseconds revoke_timeout);

  const TransportList& transports() const { return transports_; }
  Incarnation incarnation() const { return incarnation_; }

  /// kUnavailable in a process that was forked off the one that made the endpoint: nothing of it works there.
  Status check_process() const { return birthplace_.left() ? forked_off() : Status(); }

  /// How long a dropped region waits for peers to let go of it.
  std::chrono::nanoseconds revoke_timeout() const { return revoke_timeout_.load(std::memory_order_relaxed); }

  /// From now on it does not wait: the endpoint has closed, and has waited for its peers.
  void wait_no_more() { revoke_timeout_ = std::chrono::nanoseconds(0); }

  /// Registers with every usable transport that keeps to the options; fails if none takes the memory.
  Result<std::shared_ptr<Region>> add(void* data, std::size_t size, MemoryPlace place,
                                      const RegionOptions& options = {});

  /// Null if there is none (any more).
  std::shared_ptr<Region> find(RegionId id) const;

  /// The region if `key` is its key; kNotFound or kPermissionDenied otherwise.
  Result<std::shared_ptr<Region>> find(RegionId id, const RegionKey& key) const;

  void remove(RegionId id);

  /// Whom to tell of every region that ends, until it is removed.
  void add_importer(const std::shared_ptr<RegionImporter>& importer);
  void remove_importer(const RegionImporter& importer);

  /// Tells all of them but those that gave it.
  void tell_ended(const RegionInfo& region, const std::vector<std::shared_ptr<RegionImporter>>& gave) const;

  /// How many there are, and their bytes.
  struct Amount {
    std::size_t regions = 0;
    std::uint64_t bytes = 0;
  };
  Amount amount() const {
    const std::shared_lock lock(mutex_);
    return {regions_.size(), bytes_};
  }

 private:
  static Status forked_off();

  /// Gives a region an identity of its own; or that of one of the same range that is no more.
  Status name(RegionInfo& info);
  Status name_again(RegionInfo& info, const RegionDescriptor& before) const;

  const TransportList transports_;
  const Incarnation incarnation_;
  std::atomic<std::chrono::nanoseconds> revoke_timeout_;
  const Birthplace birthplace_;
  std::atomic<std::uint32_t> next_{1};
  RegionKeys keys_;
  mutable std::shared_mutex mutex_;
  std::unordered_map<std::uint32_t, std::shared_ptr<Region>> regions_;
  std::uint64_t bytes_ = 0;  // of these
  std::map<const RegionImporter*, std::weak_ptr<RegionImporter>> importers_;
};

}  // namespace p2p::engine
