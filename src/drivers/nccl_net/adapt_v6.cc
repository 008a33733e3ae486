// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/abi/v6.h"
#include "drivers/nccl_net/adapt.h"

namespace p2p::nccl_net {

std::unique_ptr<Net> adapt_v6(void* table) {
  return std::make_unique<Adapted<abi::v6::Table, abi::v6::Properties, 6>>(table);
}

}  // namespace p2p::nccl_net
