// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/abi/v5.h"
#include "drivers/nccl_net/adapt.h"

namespace p2p::nccl_net {

std::unique_ptr<Net> adapt_v5(void* table) {
  return std::make_unique<Adapted<abi::v5::Table, abi::v5::Properties, 5>>(table);
}

}  // namespace p2p::nccl_net
