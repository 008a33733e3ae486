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
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/channels/context.h"
#include "engine/channels/router.h"
#include "engine/memory/peer_budget.h"
#include "engine/memory/remote_region.h"
#include "engine/transfer/region_answers.h"

namespace p2p::engine {

/// The peer's regions that were imported over one connection; beside them what the peer is told of mine.
/// Thread-safe; messages come on the reactor's thread.
class RegionExchange : public std::enable_shared_from_this<RegionExchange> {
 public:
  RegionExchange(std::shared_ptr<Context> context, std::shared_ptr<const Router> router, SendMessage send)
      : context_(std::move(context)),
        router_(std::move(router)),
        send_(std::move(send)),
        answers_(std::make_shared<RegionAnswers>(context_, router_, send_)),
        named_(context_->peer_budget) {}

  RegionAnswers& answers() { return *answers_; }

  /// kAgain: anew, by another id, where it has failed. kNamed: the same on the word of the peer, which may
  /// name any number; such count as what peers make this side keep, and kUnavailable says that there is no
  /// room.
  enum class Import : std::uint8_t { kOnce, kAgain, kNamed };
  Result<RemoteRegionId> import(const RegionDescriptor& descriptor, Import how = Import::kOnce);

  /// Null if there is none of that id. Of the regions that failed or were revoked only the latest are kept,
  /// for the sake of their errors.
  std::shared_ptr<RemoteRegion> find(RemoteRegionId id) const;

  /// Waits until the region is usable, or is not and will not be.
  Status wait(RemoteRegionId id, std::chrono::nanoseconds timeout) const;

  /// Calls `then`, once, when the connection has opened and none of the spans' regions waits any more:
  /// usable, failed or never imported. On this thread if that is so now.
  void when_resolved(std::span<const RemoteSpan> spans, std::function<void()> then);

  /// The peer is known. Before `start` and `import_span`.
  void set_peer(Incarnation peer) {
    MutexLock lock(mutex_);
    peer_ = peer;
  }

  /// The region in which a receive of the peer's lies, as kNamed.
  Result<RemoteRegionId> import_span(const wire::ReceiveSpan& span);

  /// It is known as well which transports may come up: resolves what was imported before. Only the first call
  /// counts.
  void start();

  /// Questions are on their way to the peer, or answers on theirs.
  bool asks() const {
    MutexLock lock(mutex_);
    return !asked_.empty();
  }

  /// The connection is open.
  void open();

  Status on(const wire::RegionAnswer& answer);
  void on(const wire::RegionRevoke& revoke);

  /// The connection ended: fails all imported regions. What the peer imported is free once it is past
  /// `fence`.
  void close(const Error& error, const std::shared_ptr<Fence>& fence);

 private:
  /// Of a usable region whose owner is asked whether it has ended: imported once more since, it may have been
  /// registered again after the owner's answer; kOver: it has ended, and fails now.
  enum class Doubt : std::uint8_t { kAsked, kImportedSince, kOver };

  void resolve(const std::shared_ptr<RemoteRegion>& remote);
  void ask();
  void doubt(const std::vector<std::shared_ptr<RemoteRegion>>& regions);
  void fail_region(const std::shared_ptr<RemoteRegion>& remote, Error error,
                   std::function<void()> through = nullptr);
  void make_ready(RemoteRegion& remote, const RegionInfo& info, const std::vector<wire::ExportedKey>& keys);
  void warm_up(const std::shared_ptr<RemoteRegion>& remote);
  void wake_waiters() const;

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<const Router> router_;
  const SendMessage send_;
  const std::shared_ptr<RegionAnswers> answers_;

  mutable std::atomic<std::uint32_t> changes_{0};  // futex: bumped when a region may have left its wait
  mutable std::atomic<std::uint32_t> waiters_{0};  // that sleep on it

  mutable Mutex mutex_;
  bool started_ P2P_GUARDED_BY(mutex_) = false;
  bool open_ P2P_GUARDED_BY(mutex_) = false;
  bool closed_ P2P_GUARDED_BY(mutex_) = false;
  Incarnation peer_ P2P_GUARDED_BY(mutex_) = 0;
  std::uint32_t last_id_ P2P_GUARDED_BY(mutex_) = 0;
  std::unordered_map<std::uint32_t, std::shared_ptr<RemoteRegion>> remotes_ P2P_GUARDED_BY(mutex_);  // by id
  std::map<std::pair<std::uint32_t, RegionKey>, RemoteRegionId> known_ P2P_GUARDED_BY(mutex_);
  PeerShare named_ P2P_GUARDED_BY(mutex_);                                   // by the peer
  std::deque<std::shared_ptr<RemoteRegion>> ended_ P2P_GUARDED_BY(mutex_);   // the latest that failed
  std::deque<std::shared_ptr<RemoteRegion>> to_ask_ P2P_GUARDED_BY(mutex_);  // once there is room in asked_
  std::unordered_map<std::uint64_t, std::shared_ptr<RemoteRegion>> asked_ P2P_GUARDED_BY(mutex_);  // by query
  std::unordered_map<std::uint32_t, Doubt> doubted_ P2P_GUARDED_BY(mutex_);                        // by id
  bool full_ P2P_GUARDED_BY(mutex_) = false;  // no more is asked until many were answered
  std::uint64_t next_query_ P2P_GUARDED_BY(mutex_) = 1;
  std::vector<std::shared_ptr<void>> opening_ P2P_GUARDED_BY(mutex_);  // dropped when the connection opens
};

}  // namespace p2p::engine
