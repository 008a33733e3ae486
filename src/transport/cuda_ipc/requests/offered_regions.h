// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "p2p/result.h"
#include "transport/cuda_ipc/requests/channel_messages.h"
#include "transport/served_copies.h"

namespace p2p::cuda_ipc {

/// The memory that one channel's peer may name as its own in requests: what it offered, and what this process
/// has lent to it. Used by one thread at a time; regions are imported by others.
class OfferedRegions {
 public:
  using Imported = std::function<void(Result<std::unique_ptr<RemoteKey>>)>;

  /// Imports a region of the peer's somewhere else, and calls `done` there.
  using Import = std::function<void(const RegionInfo& region, Bytes exported, Imported done)>;

  explicit OfferedRegions(Import import) : import_(std::move(import)) {}

  /// Errors here and below are the peer's breaches of the protocol.
  Status add(RegionOffer offer);

  /// The same for memory of this process that was lent to the peer.
  Status add_leased(RegionId region, std::shared_ptr<const RemoteKey> key);

  void remove(RegionId region);

  Result<std::shared_ptr<const OfferedRegion>> find(RegionId region) const;

 private:
  Result<std::shared_ptr<OfferedRegion>> insert(RegionId region);

  const Import import_;
  std::map<RegionId, std::shared_ptr<OfferedRegion>> regions_;
};

}  // namespace p2p::cuda_ipc
