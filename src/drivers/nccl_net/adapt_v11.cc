// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/abi/v11.h"
#include "drivers/nccl_net/adapt.h"

namespace p2p::nccl_net {

std::unique_ptr<Net> adapt_v11(void* table) {
  return std::make_unique<Adapted<abi::v11::Table, abi::v11::Properties, 11>>(table);
}

}  // namespace p2p::nccl_net
