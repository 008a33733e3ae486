// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "base/unique_fd.h"
#include "p2p/result.h"
#include "transport/cuda_ipc/key.h"

namespace p2p::cuda_ipc {

/// Gets a peer's chunks from its ChunkServer, which proves that it knows the secret as this side does, and
/// calls `take` with each, in order. They add up to `memory.size`, which is not looked at any closer. Blocks
/// while the owner answers within seconds.
Status fetch_chunks(const ChunkedMemory& memory,
                    const std::function<Status(const UniqueFd& chunk, std::uint64_t size)>& take);

}  // namespace p2p::cuda_ipc
