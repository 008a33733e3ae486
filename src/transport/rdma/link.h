// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "drivers/verbs/chain.h"
#include "drivers/verbs/completion_queue.h"
#include "drivers/verbs/queue_pair.h"
#include "p2p/result.h"
#include "transport/rdma/fabric.h"

namespace p2p::rdma {

/// Requests that wait in a queue pair at most, as far as the device has room for so many.
inline constexpr unsigned kWindow = 512;

/// Requests of one doorbell, of which the last one completes.
inline constexpr unsigned kChain = 64;

/// A queue pair with all that one life of a channel's path needs. After a failure it is dropped and another
/// one made: when it is gone the device touches no memory for it.
struct Link {
  static Result<std::unique_ptr<Link>> open(const Fabric& fabric, const Nic& nic);

  /// Ids of requests that are no batch's: the greeting that is sent, and the receives for the peer's.
  static constexpr std::uint64_t kGreeting = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kReceive = std::uint64_t{1} << 62;

  std::unique_ptr<verbs::CompletionQueue> queue;
  std::unique_ptr<verbs::QueuePair> pair;
  std::unique_ptr<verbs::Chain> chain;
  unsigned window = 0;         ///< requests that may be outstanding
  std::uint32_t sequence = 0;  ///< of the first packet
  bool armed = false;          ///< the next completion makes the queue's descriptor readable
};

}  // namespace p2p::rdma
