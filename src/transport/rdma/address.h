// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "drivers/verbs/device.h"
#include "p2p/result.h"
#include "transport/transport.h"

namespace p2p::rdma {

/// What a channel tells the other one so that their queue pairs can be connected: at first through the
/// session, and again after every failure that the two repair.
struct Address {
  static constexpr std::size_t kMaxGids = 32;

  Role role = Role::kConnector;  ///< of the sender
  std::uint32_t generation = 0;  ///< how often the channel was repaired
  std::uint8_t device = 0;       ///< which of the sender's remote keys count here
  bool ethernet = true;
  std::uint16_t mtu = 0;  ///< bytes, a power of two from 256 to 4096
  std::uint16_t lid = 0;
  std::uint8_t reads = 1;  ///< that the peer may have under way here
  std::uint32_t number = 0;
  std::uint32_t sequence = 0;
  std::vector<verbs::Gid> gids;  ///< all by which the port can be reached

  /// Proven by the session's secret.
  Bytes serialize(std::span<const std::byte> secret) const;

  /// kProtocol for what `serialize` cannot have made, kPermissionDenied for another session's.
  static Result<Address> parse(ByteView bytes, std::span<const std::byte> secret);
};

struct GidPair {
  const verbs::Gid* connector = nullptr;
  const verbs::Gid* acceptor = nullptr;
};

/// The pair that suits best: RoCE v2 before v1, IPv4 before IPv6, and the longer common prefix, that is the
/// same subnet. Both sides find the same. kUnavailable if no two are of one kind.
Result<GidPair> choose_gids(std::span<const verbs::Gid> connector, std::span<const verbs::Gid> acceptor);

}  // namespace p2p::rdma
