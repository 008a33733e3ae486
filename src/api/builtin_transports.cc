// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cma/cma.h"
#include "transport/cuda_ipc/cuda_ipc.h"
#include "transport/loopback/loopback.h"
#include "transport/nccl_net/nccl_net.h"
#include "transport/rdma/rdma.h"
#include "transport/registry.h"
#include "transport/tcp/tcp.h"

namespace p2p {

// Name, factory, what users of other engines call it, its variables.
TransportRegistry builtin_transports() {
  return {.entries =
              {
                  {"loopback", loopback::make},
                  {"cuda_ipc", cuda_ipc::make},
                  {"cma", cma::make},
                  {"rdma", rdma::make, "ib", rdma::variables()},
                  {"nccl_net", nccl_net::make, "tcpx", nccl_net::variables()},
                  {"tcp", tcp::make, "nccl"},
              },
          .absent = {{"efa", "EFA"}, {"cxi", "Slingshot"}}};
}

}  // namespace p2p
