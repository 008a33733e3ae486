// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "p2p/api.h"
#include "p2p/result.h"

namespace p2p {

/// Host memory, of zeros, for regions that peers in other containers of this host map and copy to and from
/// directly (docs/pods.md). Register it, or parts of it, as any other memory. It is freed once this pointer,
/// its copies and the regions in it are gone; a peer keeps the pages until it has let go of the regions.
/// Whoever may use a region in it from another container gets all of it, to read and to write.
/// kInvalidArgument for no bytes; kUnavailable where RLIMIT_FSIZE forbids it; else kSystem.
P2P_API Result<std::shared_ptr<std::byte>> allocate_shared(std::size_t bytes);

}  // namespace p2p
