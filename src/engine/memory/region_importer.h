// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "transport/registration.h"

namespace p2p::engine {

class Region;

/// Gave a region of this endpoint to a peer, and tells it when the region is taken back.
class RegionImporter {
 public:
  RegionImporter() = default;
  virtual ~RegionImporter() = default;
  RegionImporter(const RegionImporter&) = delete;
  RegionImporter& operator=(const RegionImporter&) = delete;

  /// `region->answered` follows, on any thread, once the peer is through with the memory.
  virtual void region_revoked(std::shared_ptr<Region> region) = 0;

  /// A region was taken back that it did not give. Its peer may know it all the same, if no transport between
  /// the two asks the owner.
  virtual void region_ended(const RegionInfo& /*region*/) {}
};

}  // namespace p2p::engine
