// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/context.h"
#include "engine/remote_region.h"
#include "engine/router.h"

namespace p2p::engine {

/// Both directions of making regions known over one connection: the peer's regions that were imported here,
/// and the answers to the peer's questions about mine. Thread-safe; messages come on the reactor's thread.
class Imports : public std::enable_shared_from_this<Imports> {
 public:
  Imports(std::shared_ptr<Context> context, std::shared_ptr<const Router> router, SendMessage send)
      : context_(std::move(context)), router_(std::move(router)), send_(std::move(send)) {}

  Result<RemoteRegionId> import(const RegionDescriptor& descriptor);
  std::shared_ptr<RemoteRegion> find(RemoteRegionId id) const;

  /// Waits until the region is usable, or is not and will not be.
  Status wait(RemoteRegionId id, std::chrono::nanoseconds timeout) const;

  /// Calls `then`, once, when the connection has opened and none of the spans' regions waits any more:
  /// usable, failed or never imported. On this thread if that is so now.
  void when_resolved(std::span<const RemoteSpan> spans, std::function<void()> then);

  /// The connection is open: resolves what was imported before.
  void start(Incarnation peer);

  void on(const wire::RegionQuery& query);
  Status on(const wire::RegionAnswer& answer);
  void on(const wire::RegionRevoke& revoke);
  void on(const wire::RegionRevoked& revoked);

  /// The connection ended: fails all imported regions and counts all revocations as answered.
  void close(const Error& error);

 private:
  void resolve(const std::shared_ptr<RemoteRegion>& remote);
  void make_ready(RemoteRegion& remote, const RegionInfo& info, const std::vector<wire::ExportedKey>& keys);
  bool takes_long(const RegionInfo& info) const;
  void wake_waiters() const;
  void tell_revoked(RegionId region, std::function<void()> through);

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<const Router> router_;
  const SendMessage send_;

  mutable std::atomic<std::uint32_t> changes_{0};  // futex: bumped when a region may have left its wait

  mutable Mutex mutex_;
  bool started_ P2P_GUARDED_BY(mutex_) = false;
  bool closed_ P2P_GUARDED_BY(mutex_) = false;
  Incarnation peer_ P2P_GUARDED_BY(mutex_) = 0;
  std::vector<std::shared_ptr<RemoteRegion>> remotes_ P2P_GUARDED_BY(mutex_);  // by id - 1
  std::map<std::pair<std::uint32_t, RegionKey>, RemoteRegionId> known_ P2P_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::shared_ptr<RemoteRegion>> asked_ P2P_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::function<void()>> revocations_ P2P_GUARDED_BY(mutex_);
  std::uint64_t next_ P2P_GUARDED_BY(mutex_) = 0;
  std::vector<std::shared_ptr<void>> opening_ P2P_GUARDED_BY(mutex_);  // dropped when the connection opens
};

}  // namespace p2p::engine
