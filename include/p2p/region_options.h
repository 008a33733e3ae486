// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "p2p/memory.h"

namespace p2p {

/// What peers may do with a region; the owner checks it (docs/security.md). The owner's own transfers are not
/// restricted.
struct RegionOptions {
  /// Peers may only read. Transports by which a peer reaches the memory without the owner are not used then.
  bool read_only = false;

  /// Who may use the region, by `Peer::identity`; empty: every peer that holds the descriptor. Needs a key
  /// file or certificates.
  std::vector<std::string> peers;

  /// For how long after registration peers may begin to use the region, by the owner's steady clock; more
  /// than zero. None: as long as it is registered. Transports by which a peer reaches the memory without the
  /// owner are not used then, as only the owner can enforce it.
  std::optional<std::chrono::nanoseconds> expires{};

  /// What `MemoryRegion::descriptor` said of a region of the same range of this endpoint that was released
  /// since: the new one takes its place, with its id and key, so the descriptors that peers have are good
  /// again. A peer that knew of the old one's end asks anew (`Connection::import_region`). Not in several
  /// calls at once for one descriptor.
  std::optional<RegionDescriptor> again{};
};

}  // namespace p2p
