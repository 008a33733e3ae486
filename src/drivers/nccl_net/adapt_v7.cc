// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/abi/v7.h"
#include "drivers/nccl_net/adapt.h"

namespace p2p::nccl_net {

std::unique_ptr<Net> adapt_v7(void* table) {
  return std::make_unique<Adapted<abi::v7::Table, abi::v7::Properties, 7>>(table);
}

}  // namespace p2p::nccl_net
