// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "p2p/result.h"
#include "transport/batch.h"
#include "transport/copy_request.h"
#include "transport/peer_access.h"

namespace p2p {

/// A region of the peer's as it is imported here, in whatever thread does that.
struct OfferedRegion {
  std::atomic<bool> settled{false};
  std::shared_ptr<const RemoteKey> key;  ///< this or the error, once settled
  Error error;
};

/// A batch that the peer asked this side to copy: seen from here, so that a write of the peer's is a read.
/// While it lives its local regions are in use by the peer, and what it names stays.
struct ServedCopy {
  Batch batch() const { return {BatchId{0}, operation, segments, 0, bytes}; }

  std::uint64_t number = 0;  ///< the peer's
  Operation operation = Operation::kRead;
  std::vector<Segment> segments;  ///< without a RemoteKey where the peer named addresses alone
  std::uint64_t bytes = 0;
  std::vector<AccessGuard> accesses;  ///< they keep the registrations, too
  std::vector<std::shared_ptr<const RemoteKey>> keys;
  Status status;  ///< an error: nothing is to be copied
};

/// The batches that one channel's peer asked this side to copy, in their order. Used by one thread at a time.
class ServedCopies {
 public:
  /// What no honest peer exceeds.
  struct Limits {
    std::size_t batches = 0;   ///< that wait
    std::size_t segments = 0;  ///< of one batch
    std::uint64_t bytes = 0;   ///< of one batch
  };

  ServedCopies(PeerAccess regions, Limits limits) : regions_(std::move(regions)), limits_(limits) {}

  /// `mine` is the region that the request names as its sender's; null where addresses do. kProtocol: the
  /// limits are exceeded, or batches are asked for twice or mixed up.
  Status add(CopyRequest request, std::shared_ptr<const OfferedRegion> mine = nullptr);

  /// The next batch that is complete and whose regions have been imported, or cannot be. Null: none now.
  std::unique_ptr<ServedCopy> take();

  /// No request waits.
  bool empty() const { return waiting_.empty(); }

 private:
  struct Request {
    CopyRequest request;
    std::shared_ptr<const OfferedRegion> mine;
  };
  struct Waiting {
    std::uint64_t batch = 0;
    std::size_t segments = 0;
    std::uint64_t bytes = 0;
    bool complete = false;
    std::vector<Request> requests;
  };

  Status resolve(const Request& asked, ServedCopy& copy) const;

  const PeerAccess regions_;
  const Limits limits_;
  std::deque<Waiting> waiting_;
};

}  // namespace p2p
