// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "p2p/result.h"
#include "transport/batch.h"
#include "transport/cuda_ipc/requests/copy_request.h"
#include "transport/peer_access.h"

namespace p2p::cuda_ipc {

/// A batch that the peer asked this side to copy: seen from here, so that a write of the peer's is a read.
/// While it lives its local regions are in use by the peer, and what it names stays.
struct ServedCopy {
  Batch batch() const { return {BatchId{0}, operation, segments, 0, bytes}; }

  std::uint64_t number = 0;  ///< the peer's
  Operation operation = Operation::kRead;
  std::vector<Segment> segments;
  std::uint64_t bytes = 0;
  std::vector<AccessGuard> accesses;  ///< they keep the registrations, too
  std::vector<std::shared_ptr<const RemoteKey>> keys;
  Status status;  ///< an error: nothing is to be copied
};

/// The requests of one channel's peer, in their order, and the regions that it offered. Used by one thread at
/// a time; regions are imported by others.
class ServedCopies {
 public:
  using Imported = std::function<void(Result<std::unique_ptr<RemoteKey>>)>;

  /// Imports a region of the peer's somewhere else, and calls `done` there.
  using Import = std::function<void(const RegionInfo& region, Bytes exported, Imported done)>;

  ServedCopies(PeerAccess regions, Import import, std::size_t most_segments)
      : regions_(std::move(regions)), import_(std::move(import)), most_segments_(most_segments) {}

  /// Errors are the peer's breaches of the protocol.
  Status on(RegionOffer offer);
  void on(const RegionWithdrawn& withdrawn);

  /// The same for memory of this process that was lent to the peer.
  Status lend(RegionId region, std::shared_ptr<const RemoteKey> key);
  Status on(CopyRequest request);

  /// The next batch that is complete and whose regions have been imported, or cannot be. Null: none now.
  std::unique_ptr<ServedCopy> take();

  /// No request waits.
  bool empty() const { return waiting_.empty(); }

 private:
  struct Offered {
    std::atomic<bool> settled{false};
    std::shared_ptr<const RemoteKey> key;  // these two once settled
    Error error;
  };
  struct Waiting {
    std::uint64_t batch = 0;
    std::size_t segments = 0;
    bool complete = false;
    std::vector<CopyRequest> requests;
    std::vector<std::shared_ptr<const Offered>> offers;  // one a request
  };

  Result<std::shared_ptr<Offered>> add(RegionId region);
  Status add(ServedCopy& copy, const CopyRequest& request, const Offered& offered) const;

  const PeerAccess regions_;
  const Import import_;
  const std::size_t most_segments_;
  std::map<std::uint32_t, std::shared_ptr<Offered>> offers_;
  std::deque<Waiting> waiting_;
};

}  // namespace p2p::cuda_ipc
