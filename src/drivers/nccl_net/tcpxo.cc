// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/tcpxo.h"

#include <string>

#include "base/error.h"
#include "drivers/nccl_net/defaults.h"
#include "drivers/nccl_net/receive_manager.h"
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
  const std::string address = tcpxo_manager_address();
  const int code = knock(address);
  if (code == 0) return {};
  return fail(ErrorCode::kUnavailable,
              "RxDM does not answer at {}, and without it FasTrak's init ends the process: {}", address,
              system_error("connect", code).message);
}

}  // namespace p2p::nccl_net
