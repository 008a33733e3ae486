// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/tcpxo.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/unique_fd.h"
#include "drivers/nccl_net/defaults.h"
#include "drivers/nccl_net/tcpx.h"

namespace p2p::nccl_net {

bool is_tcpxo(std::string_view plugin_name) { return plugin_name.starts_with("FasTrak"); }

bool is_gpudirect(std::string_view plugin_name) { return is_tcpx(plugin_name) || is_tcpxo(plugin_name); }

std::string tcpxo_manager_address() {
  constexpr const char* kSocket = "rxdm_uds_nic_mapping";
  const auto folder = plugin_variable("FILE_BASED_UDS_PATH_PREFIX");
  return folder && !folder->empty() ? *folder + "/" + kSocket : std::string("@") + kSocket;
}

Status check_tcpxo_manager() {
  const std::string path = tcpxo_manager_address();
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (path.size() >= sizeof address.sun_path) {
    return fail(ErrorCode::kUnavailable, "RxDM: {} is too long for a socket", path);
  }
  std::ranges::copy(path, address.sun_path);
  if (path.starts_with('@')) address.sun_path[0] = '\0';
  const UniqueFd socket = UniqueFd::of(::socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  // An abstract name is as long as the structure here: zeros belong to it.
  if (socket && ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    return {};
  }
  return fail(ErrorCode::kUnavailable,
              "RxDM does not answer at {}, and without it FasTrak's init ends the process: {}", path,
              system_error("connect").message);
}

}  // namespace p2p::nccl_net
