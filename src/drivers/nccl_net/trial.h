// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "drivers/nccl_net/net.h"
#include "p2p/result.h"

namespace p2p::nccl_net {

/// Calls `init` in a child process and says how that ended: kUnavailable if it ended the process, as
/// GPUDirect-TCPX does where CUDA cannot be initialised, or was not through after a while. A code that it
/// returned is success here: the caller will get the same. Nothing of it stays in this process.
///
/// Not for a process that uses CUDA already: its children cannot.
Status try_init(Net& net);

}  // namespace p2p::nccl_net
