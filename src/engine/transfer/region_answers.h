// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/channels/context.h"
#include "engine/channels/router.h"
#include "engine/memory/region.h"
#include "wire/messages.h"

namespace p2p::engine {

/// Memory that a peer may have digested. It is not taken back meanwhile.
struct DigestedMemory {
  std::vector<AccessGuard> guards;
  std::vector<Digests::Range> ranges;
};

/// What one peer is told of my regions: the keys and the digests that it asks for, and when one is taken
/// back. Thread-safe; messages come on the reactor's thread.
class RegionAnswers : public RegionImporter, public std::enable_shared_from_this<RegionAnswers> {
 public:
  RegionAnswers(std::shared_ptr<Context> context, std::shared_ptr<const Router> router, SendMessage send)
      : context_(std::move(context)), router_(std::move(router)), send_(std::move(send)) {}

  /// Who the session has proven the peer to be; before any question of its comes.
  void set_peer_identity(std::string identity) {
    MutexLock lock(mutex_);
    identity_ = std::move(identity);
  }

  void region_revoked(std::shared_ptr<Region> region) override;
  void region_ended(const RegionInfo& region) override;

  void on(const wire::RegionQuery& query);
  void on(const wire::RegionRevoked& revoked);

  /// kProtocol for more than a peer may ask at a time.
  Status on(wire::DigestQuery asked);

  /// The connection ended. What the peer imported is free once it is past `fence`.
  void close(const std::shared_ptr<Fence>& fence);

 private:
  Result<std::shared_ptr<Region>> give(const wire::RegionQuery& query);
  void answer(const wire::RegionQuery& query, const Result<std::shared_ptr<Region>>& region);
  Status may_read(const RegionInfo& region);
  Result<DigestedMemory> memory_of(const wire::DigestQuery& query);
  void answer(const wire::DigestQuery& query, const Result<DigestedMemory>& memory);

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<const Router> router_;
  const SendMessage send_;

  Mutex mutex_;
  std::string identity_ P2P_GUARDED_BY(mutex_);
  std::unordered_set<std::uint64_t> digesting_ P2P_GUARDED_BY(mutex_);  // queries that are not answered
  std::unordered_set<std::uint32_t> given_ P2P_GUARDED_BY(mutex_);      // regions of mine that the peer knows
  std::unordered_map<std::uint64_t, std::shared_ptr<Region>> revocations_
      P2P_GUARDED_BY(mutex_);                            // unanswered
  std::shared_ptr<Fence> fence_ P2P_GUARDED_BY(mutex_);  // once closed
  bool closed_ P2P_GUARDED_BY(mutex_) = false;
  std::uint64_t next_ P2P_GUARDED_BY(mutex_) = 1;  // 0: of revocations whose answers nobody waits for
};

/// A driver maps the memory when it is exported or imported, and answers nobody meanwhile.
bool takes_long(const RegionInfo& info, const TransportList& transports, const Router& router);

}  // namespace p2p::engine
