// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "p2p/result.h"
#include "transport/batch.h"
#include "transport/cma/copy_request.h"
#include "transport/peer_access.h"

namespace p2p::cma {

/// What one channel's peer asked this side to copy, in its order. Used by one thread at a time.
class ServedCopies {
 public:
  /// Copies a batch whose local memory is this side's and whose remote memory is the peer's: a write of the
  /// peer's is a read.
  using Copy = std::function<Status(const Batch& batch)>;

  explicit ServedCopies(PeerAccess regions) : regions_(std::move(regions)) {}

  /// kProtocol: more are asked for at once than any peer has slots for, or one of them twice.
  Status add(CopyRequest request);

  bool empty() const { return waiting_.empty(); }

  /// Copies the oldest one by `copy`, if the peer may reach all that it names, and says how that ended.
  /// Whoever takes one of the regions back waits for it.
  CopyOutcome serve(const Copy& copy);

 private:
  Status resolve(const CopyRequest& request);

  const PeerAccess regions_;
  std::deque<CopyRequest> waiting_;
  // Scratch: of the one that is served.
  std::vector<std::shared_ptr<Registration>> found_;  // as the request counts its regions
  std::vector<AccessGuard> accesses_;
  std::vector<Segment> segments_;
};

}  // namespace p2p::cma
