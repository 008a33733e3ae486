// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/abi/v10.h"
#include "drivers/nccl_net/adapt.h"

namespace p2p::nccl_net {

std::unique_ptr<Net> adapt_v10(void* table) {
  return std::make_unique<Adapted<abi::v10::Table, abi::v10::Properties, 10>>(table);
}

}  // namespace p2p::nccl_net
