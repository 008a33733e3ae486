// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/abi/v12.h"
#include "drivers/nccl_net/adapt.h"

namespace p2p::nccl_net {

std::unique_ptr<Net> adapt_v12(void* table) {
  return std::make_unique<Adapted<abi::v12::Table, abi::v12::Properties, 12>>(table);
}

}  // namespace p2p::nccl_net
