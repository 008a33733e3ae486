// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/receive_manager.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "drivers/nccl_net/defaults.h"
#include "drivers/nccl_net/tcpx.h"

namespace p2p::nccl_net {
namespace {

constexpr std::string_view kPools = "get_gpu_fd_";

std::string folder_of_sockets() {
  const std::string folder = plugin_variable("NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX").value_or("");
  if (!folder.empty()) return folder;
  std::error_code error;
  return std::filesystem::is_directory(kReceiveManagerFolder, error) ? kReceiveManagerFolder : "/tmp";
}

/// GPUs whose accepts were found good; never destroyed, as plugins are not.
struct GoodGpus {
  Mutex mutex;
  std::set<std::string> bus_ids P2P_GUARDED_BY(mutex);
};

GoodGpus& good_gpus() {
  static GoodGpus* const all = new GoodGpus;
  return *all;
}

}  // namespace

// The socket of a daemon that has ended stays in its folder.
int knock(const std::string& address) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (address.size() >= sizeof name.sun_path) return ENAMETOOLONG;
  address.copy(name.sun_path, address.size());
  if (address.starts_with('@')) name.sun_path[0] = '\0';
  const UniqueFd socket = UniqueFd::of(::socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (!socket) return errno;
  // An abstract name is as long as the structure here: zeros belong to it. EAGAIN: many wait to be accepted.
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0 ||
                 errno == EAGAIN
             ? 0
             : errno;
}

ReceiveManager look_for_receive_manager() {
  ReceiveManager manager;
  manager.folder = folder_of_sockets();
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(manager.folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool gpu = name.starts_with(kPools), rules = name == "rx_rule_manager";
    if ((gpu || rules) && knock(entry.path().string()) == ECONNREFUSED) {
      manager.problem = "nobody listens at " + name;
      continue;
    }
    if (gpu) ++manager.gpus;
    manager.rules = manager.rules || rules;
  }
  if (error) manager.problem = error.message();
  return manager;
}

Status check_receive_manager(const std::string& bus_id) {
  for (const std::string_view kind : {kPools, std::string_view("get_gpu_metadata_")}) {
    const std::string path = fmt::format("{}/{}{}", folder_of_sockets(), kind, bus_id);
    if (const int code = knock(path); code != 0) {
      return fail(ErrorCode::kUnavailable,
                  "RxDM has no pool of the GPU {}: {}; start RxDM for this GPU, and point "
                  "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX at its sockets",
                  bus_id, system_error("connect to " + path, code).message);
    }
  }
  return {};
}

Status check_accepts(const Plugin& plugin, const ReceivingGpu& gpu) {
  if (!is_tcpx(plugin.name()) || has_pool_in_host_memory(plugin)) return {};
  Status good;
  if (!gpu.bus_id) good = tl::unexpected(gpu.bus_id.error());
  GoodGpus& known = good_gpus();
  const MutexLock lock(known.mutex);
  if (good && known.bus_ids.contains(*gpu.bus_id)) return {};
  // It gets its pool through the sockets unless the user says otherwise.
  const bool by_sockets = plugin_variable("NCCL_TCPX_RXMEM_IMPORT_USE_GPU_PCI_CLIENT") != "0";
  if (good && by_sockets) good = check_receive_manager(*gpu.bus_id);
  if (good) good = gpu.allocate();
  if (!good) {
    return fail(ErrorCode::kUnavailable, "{} would end the process in an accept for CUDA device {}: {}",
                plugin.name(), gpu.ordinal, good.error().message);
  }
  known.bus_ids.insert(*gpu.bus_id);
  return {};
}

}  // namespace p2p::nccl_net
