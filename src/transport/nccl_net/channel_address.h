// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "drivers/nccl_net/handle.h"
#include "drivers/nccl_net/plugin.h"
#include "p2p/result.h"

namespace p2p::nccl_net {

/// What a channel tells its twin so that it can connect.
struct ChannelAddress {
  Handle handle{};
  std::size_t chunk_bytes = 0;  ///< of one message that is received, at most
  std::string nic;              ///< that the handle's listener is on, by the plugin's name

  Bytes encode() const;

  /// kProtocol for bytes that `encode` could not have made.
  static Result<ChannelAddress> decode(std::span<const std::byte> bytes);
};

/// The NIC to connect from: the one that is called as the peer's, else `own`. NICs of one name are in one
/// network, and those of different names may not reach each other. The two sides' differ where their GPUs do,
/// since a channel receives by the NIC next to its GPU.
const Device& device_towards(const std::vector<Device>& devices, const Device& own, const std::string& nic);

}  // namespace p2p::nccl_net
