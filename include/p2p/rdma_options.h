// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace p2p {

/// What can be set for RDMA. A setting that cannot be met is an error.
struct RdmaOptions {
  /// Devices ("mlx5_0") or their ports ("mlx5_0:1") to use; empty: all active ports, where this process uses
  /// a GPU the ones nearest to it.
  std::vector<std::string> devices;

  /// Which of a port's GIDs names it; -1: the one that suits the peer's best.
  int gid_index = -1;

  /// Path MTU in bytes, 256 to 4096; 0: what both ports have.
  unsigned mtu = 0;

  /// Queue pairs a connection and port.
  unsigned queue_pairs = 2;

  /// How long to wait for an answer before a packet is sent again: 4.096 us * 2^timeout, as the IB
  /// specification has it. 0: chosen so that a lost peer is noticed within half the keepalive time.
  unsigned timeout = 0;

  /// How often a packet is sent again, 0 to 7. For software RoCE 7 means without end.
  unsigned retries = 6;

  unsigned service_level = 0;  ///< 0 to 15
  unsigned traffic_class = 0;  ///< 0 to 255; its upper six bits are the DSCP of RoCE v2
};

}  // namespace p2p
