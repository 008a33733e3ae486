// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "drivers/socket/local_place.h"
#include "p2p/result.h"
#include "transport/cuda_ipc/memory/key.h"

namespace p2p::cuda_ipc {

/// Gets a peer's chunks from its ChunkServer, which proves that it knows the secret as this side does, and
/// calls `take` with each, in order. The server is looked for at `place`, as it is known here. They add up to
/// `memory.size`, which is not looked at any closer. Blocks while the owner answers within seconds.
Status fetch_chunks(const ChunkedMemory& memory,
                    const std::function<Status(const UniqueFd& chunk, std::uint64_t size)>& take,
                    const socket::Place& place = {});

/// What an owner lends to this process, which has it for as long as `owner` is open.
struct Borrowed {
  UniqueFd owner;
  std::vector<UniqueFd> descriptors;
  Bytes words;
};

/// Asks for it in the same way; exactly `descriptors` are to come.
Result<Borrowed> borrow(const Ticket& ticket, std::size_t descriptors, const socket::Place& place = {});

}  // namespace p2p::cuda_ipc
