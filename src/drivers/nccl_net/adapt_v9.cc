// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/abi/v9.h"
#include "drivers/nccl_net/adapt.h"

namespace p2p::nccl_net {

std::unique_ptr<Net> adapt_v9(void* table) {
  return std::make_unique<Adapted<abi::v9::Table, abi::v9::Properties, 9>>(table);
}

}  // namespace p2p::nccl_net
