// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "transport/batch.h"
#include "transport/registration.h"

namespace p2p {

/// The regions of a transport as one peer may use them: by their keys and, where a region has them, within
/// its RegionOptions. A channel asks it about every range that its peer names.
class PeerAccess {
 public:
  /// `peer` is who the session has proven the other side to be; empty: nobody has.
  PeerAccess(std::shared_ptr<const RegistrationTable> regions, std::string peer)
      : regions_(std::move(regions)), peer_(std::move(peer)) {}

  /// As RegistrationTable::find; kPermissionDenied, naming region, peer and cause, if the region's options
  /// keep this peer from it.
  Result<std::shared_ptr<Registration>> find(Operation operation, RegionId id, const RegionKey& key,
                                             std::uint64_t address, std::uint64_t size) const {
    auto found = regions_->find(id, key, address, size);
    if (!found) return found;
    if (Status may = (*found)->info().check(operation, peer_); !may) return tl::unexpected(may.error());
    return found;
  }

 private:
  std::shared_ptr<const RegistrationTable> regions_;
  std::string peer_;
};

}  // namespace p2p
