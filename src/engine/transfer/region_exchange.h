// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/channels/context.h"
#include "engine/channels/router.h"
#include "engine/memory/remote_region.h"

namespace p2p::engine {

/// Both directions of making regions known over one connection: the peer's regions that were imported here,
/// and the answers to the peer's questions about mine. Thread-safe; messages come on the reactor's thread.
class RegionExchange : public RegionImporter, public std::enable_shared_from_this<RegionExchange> {
 public:
  RegionExchange(std::shared_ptr<Context> context, std::shared_ptr<const Router> router, SendMessage send)
      : context_(std::move(context)), router_(std::move(router)), send_(std::move(send)) {}

  Result<RemoteRegionId> import(const RegionDescriptor& descriptor);

  /// Null if there is none of that id. Of the regions that failed or were revoked only the latest are kept,
  /// for the sake of their errors.
  std::shared_ptr<RemoteRegion> find(RemoteRegionId id) const;

  /// Waits until the region is usable, or is not and will not be.
  Status wait(RemoteRegionId id, std::chrono::nanoseconds timeout) const;

  /// Calls `then`, once, when the connection has opened and none of the spans' regions waits any more:
  /// usable, failed or never imported. On this thread if that is so now.
  void when_resolved(std::span<const RemoteSpan> spans, std::function<void()> then);

  /// Who the session has proven the peer to be; before any question of its comes.
  void set_peer_identity(std::string identity) {
    MutexLock lock(mutex_);
    identity_ = std::move(identity);
  }

  /// The peer is known, and which transports may come up: resolves what was imported before. Only the first
  /// call counts.
  void start(Incarnation peer);

  /// Questions are on their way to the peer, or answers on theirs.
  bool asks() const {
    MutexLock lock(mutex_);
    return !asked_.empty();
  }

  /// The connection is open.
  void open();

  void region_revoked(std::shared_ptr<Region> region) override;
  void region_ended(const RegionInfo& region) override;

  void on(const wire::RegionQuery& query);
  Status on(const wire::RegionAnswer& answer);
  void on(const wire::RegionRevoke& revoke);
  void on(const wire::RegionRevoked& revoked);

  /// The connection ended: fails all imported regions. What the peer imported is free once it is past
  /// `fence`.
  void close(const Error& error, const std::shared_ptr<Fence>& fence);

 private:
  Result<std::shared_ptr<Region>> give(const wire::RegionQuery& query);
  void answer(const wire::RegionQuery& query, const Result<std::shared_ptr<Region>>& region);
  void resolve(const std::shared_ptr<RemoteRegion>& remote);
  void ask();
  void fail_region(const std::shared_ptr<RemoteRegion>& remote, Error error,
                   std::function<void()> through = nullptr);
  void make_ready(RemoteRegion& remote, const RegionInfo& info, const std::vector<wire::ExportedKey>& keys);
  void warm_up(const std::shared_ptr<RemoteRegion>& remote);
  bool takes_long(const RegionInfo& info) const;
  void wake_waiters() const;

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<const Router> router_;
  const SendMessage send_;

  mutable std::atomic<std::uint32_t> changes_{0};  // futex: bumped when a region may have left its wait
  mutable std::atomic<std::uint32_t> waiters_{0};  // that sleep on it

  mutable Mutex mutex_;
  bool started_ P2P_GUARDED_BY(mutex_) = false;
  bool open_ P2P_GUARDED_BY(mutex_) = false;
  bool closed_ P2P_GUARDED_BY(mutex_) = false;
  Incarnation peer_ P2P_GUARDED_BY(mutex_) = 0;
  std::string identity_ P2P_GUARDED_BY(mutex_);
  std::uint32_t last_id_ P2P_GUARDED_BY(mutex_) = 0;
  std::unordered_map<std::uint32_t, std::shared_ptr<RemoteRegion>> remotes_ P2P_GUARDED_BY(mutex_);  // by id
  std::map<std::pair<std::uint32_t, RegionKey>, RemoteRegionId> known_ P2P_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<RemoteRegion>> ended_ P2P_GUARDED_BY(mutex_);   // the latest that failed
  std::deque<std::shared_ptr<RemoteRegion>> to_ask_ P2P_GUARDED_BY(mutex_);  // once there is room in asked_
  std::unordered_map<std::uint64_t, std::shared_ptr<RemoteRegion>> asked_ P2P_GUARDED_BY(mutex_);  // by query
  bool full_ P2P_GUARDED_BY(mutex_) = false;  // no more is asked until many were answered
  std::unordered_set<std::uint32_t> given_ P2P_GUARDED_BY(mutex_);  // regions of mine that the peer knows
  std::unordered_map<std::uint64_t, std::shared_ptr<Region>> revocations_
      P2P_GUARDED_BY(mutex_);                            // unanswered
  std::shared_ptr<Fence> fence_ P2P_GUARDED_BY(mutex_);  // once closed
  std::uint64_t next_ P2P_GUARDED_BY(mutex_) = 1;        // 0: of revocations whose answers nobody waits for
  std::vector<std::shared_ptr<void>> opening_ P2P_GUARDED_BY(mutex_);  // dropped when the connection opens
};

}  // namespace p2p::engine
