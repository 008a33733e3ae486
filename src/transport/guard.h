// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace p2p {

/// Who keeps a peer from what a region's RegionOptions do not let it do. Only kOwner knows when a region
/// expires.
enum class Guard : std::uint8_t {
  kOwner,   ///< the owner's engine looks at each access
  kDevice,  ///< the owner's device refuses writes to what is registered read-only
  kNobody,  ///< the peer's process reaches the memory by itself: only its own engine holds it back
};

}  // namespace p2p
