// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace tcpx {

/// RxDM, the daemon that has the GPUs' pools and steers flows to them, by its sockets.
struct ReceiveManager {
  std::string folder;
  std::size_t gpus = 0;  ///< whose pools it hands out
  bool rules = false;    ///< it takes flow-steering rules
  std::string problem;   ///< why the folder cannot be read, or a socket that nobody listens at

  bool is_there() const { return gpus != 0 && rules; }
};

/// Looks where the plugin does.
ReceiveManager look_for_receive_manager();

}  // namespace tcpx
