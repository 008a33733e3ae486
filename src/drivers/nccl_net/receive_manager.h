// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "drivers/nccl_net/plugin.h"
#include "p2p/result.h"

namespace p2p::nccl_net {

/// RxDM, the daemon that has the GPUs' pools and steers flows to them, by its sockets.
struct ReceiveManager {
  std::string folder;
  std::size_t gpus = 0;  ///< whose pools it hands out
  bool rules = false;    ///< it takes flow-steering rules
  std::string problem;   ///< why the folder cannot be read, or a socket that nobody listens at

  bool is_there() const { return gpus != 0 && rules; }
};

/// Of connecting to a socket of its kind, "@" in front of an abstract name: 0 if somebody listens, else
/// errno.
int knock(const std::string& address);

/// Looks where the plugin does.
ReceiveManager look_for_receive_manager();

/// Connects to the sockets by which the plugin gets the pool of the GPU at this PCI address ("0000:04:00.0").
/// kUnavailable names the socket that does not answer.
Status check_receive_manager(const std::string& bus_id);

/// A CUDA device as the plugin uses it. Nothing here may ask CUDA itself.
struct ReceivingGpu {
  int ordinal = 0;
  Result<std::string> bus_id;
  std::function<Status()> allocate;  ///< tries what an accept allocates: small pieces
};

/// GPUDirect-TCPX ends the process in a GPU's first accept where RxDM has no pool of that GPU, or CUDA no
/// memory for it. So both are tried before, until they were good once for that GPU. kUnavailable says what is
/// missing; success for any other plugin.
Status check_accepts(const Plugin& plugin, const ReceivingGpu& gpu);

}  // namespace p2p::nccl_net
