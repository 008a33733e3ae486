// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "drivers/nccl_net/net.h"

namespace p2p::nccl_net {

/// What plugins do not see to themselves. One thread at a time is in `init`, `listen`, `connect`, `accept`
/// and the closes of a plugin: GPUDirect-TCPX imports the pool of its GPU in the first accept without a lock,
/// and a second import unmaps the first. And no call raises SIGPIPE.
std::unique_ptr<Net> guarded(std::unique_ptr<Net> net);

}  // namespace p2p::nccl_net
