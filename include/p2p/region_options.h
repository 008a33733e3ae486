// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace p2p {

/// What peers may do with a region; its owner checks it (docs/security.md). The owner's own transfers are as
/// free as ever.
struct RegionOptions {
  /// Peers read only. Transports by which a peer's process reaches memory by itself are left out then.
  bool read_only = false;

  /// Who may use the region, as `Peer::identity` says it; empty: every peer that holds the descriptor. Asks
  /// for a key file or certificates.
  std::vector<std::string> peers;

  /// How long from its registration on peers may begin to use the region, by the owner's steady clock; longer
  /// than zero. Without: as long as it is registered. The owner's engine alone can keep this: transports by
  /// which peers reach memory without it are left out then.
  std::optional<std::chrono::nanoseconds> expires{};
};

}  // namespace p2p
