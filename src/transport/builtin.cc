// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cma/cma.h"
#include "transport/cuda_ipc/cuda_ipc.h"
#include "transport/loopback/loopback.h"
#include "transport/nccl_net/nccl_net.h"
#include "transport/rdma/rdma.h"
#include "transport/registry.h"
#include "transport/tcp/tcp.h"

namespace p2p {

TransportRegistry builtin_transports() {
  return {{
      {"loopback", loopback::make},
      {"cuda_ipc", cuda_ipc::make},
      {"cma", cma::make},
      {"rdma", rdma::make},
      {"nccl_net", nccl_net::make},
      {"tcp", tcp::make},
  }};
}

}  // namespace p2p
