// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "tcpx/receive_manager.h"

#include <filesystem>

#include "drivers/nccl_net/defaults.h"

namespace tcpx {

ReceiveManager look_for_receive_manager() {
  constexpr const char* kPrefix = "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX";
  ReceiveManager manager;
  manager.folder = p2p::nccl_net::plugin_variable(kPrefix).value_or("");
  if (manager.folder.empty()) manager.folder = "/tmp";
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(manager.folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("get_gpu_fd_")) ++manager.gpus;
    manager.rules = manager.rules || name == "rx_rule_manager";
  }
  if (error) manager.problem = error.message();
  return manager;
}

}  // namespace tcpx
