// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "tcpx/receive_manager.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <filesystem>

#include "base/unique_fd.h"
#include "drivers/nccl_net/defaults.h"

namespace tcpx {

namespace {

/// The socket of a daemon that has ended stays in its folder.
bool is_stale(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  path.copy(address.sun_path, path.size());
  const p2p::UniqueFd socket =
      p2p::UniqueFd::of(::socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
         errno == ECONNREFUSED;
}

}  // namespace

ReceiveManager look_for_receive_manager() {
  constexpr const char* kPrefix = "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX";
  ReceiveManager manager;
  manager.folder = p2p::nccl_net::plugin_variable(kPrefix).value_or("");
  if (manager.folder.empty()) manager.folder = "/tmp";
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(manager.folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool gpu = name.starts_with("get_gpu_fd_"), rules = name == "rx_rule_manager";
    if ((gpu || rules) && is_stale(entry.path().string())) {
      manager.problem = "nobody listens at " + name;
      continue;
    }
    if (gpu) ++manager.gpus;
    manager.rules = manager.rules || rules;
  }
  if (error) manager.problem = error.message();
  return manager;
}

}  // namespace tcpx
