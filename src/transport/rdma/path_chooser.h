// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "drivers/verbs/queue_pair.h"
#include "p2p/result.h"
#include "transport/rdma/address.h"
#include "transport/rdma/fabric.h"
#include "transport/rdma/link.h"
#include "transport/transport.h"

namespace p2p::rdma {

/// The way from a queue pair of mine to the peer's.
struct ChosenPath {
  verbs::Path path;
  std::string description;  ///< for people
};

/// Chooses the way to the peer, from what is the same for all queue pairs of a channel.
struct PathChooser {
  const Nic& nic;
  const verbs::Device& device;
  const RdmaOptions& options;
  std::chrono::milliseconds keepalive;
  Role role;

  /// Reads of the peer that the device serves at once.
  unsigned reads_in() const;

  /// What the peer is told of this side.
  Address own_address(const Link& link, std::uint32_t generation) const;

  /// kUnavailable if the two ports have no way in common.
  Result<ChosenPath> choose(const Link& link, const Address& peer) const;
};

}  // namespace p2p::rdma
