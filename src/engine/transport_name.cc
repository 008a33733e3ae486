// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/transport_name.h"

#include "base/error.h"

namespace p2p::engine {

Result<std::string> transport_name(std::string_view word) {
  if (word == "ib") return std::string("rdma");
  if (word == "nccl") return std::string("tcp");
  if (word == "tcpx") return std::string("nccl_net");
  if (word == "efa" || word == "cxi") {
    return fail(ErrorCode::kUnavailable,
                "use transport '{}': there is none for {} adapters; set UCCL_P2P_TRANSPORT=tcp, which uses "
                "their host's IP network",
                word, word == "efa" ? "EFA" : "Slingshot");
  }
  return std::string(word);
}

}  // namespace p2p::engine
