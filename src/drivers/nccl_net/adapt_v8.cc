// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/abi/v8.h"
#include "drivers/nccl_net/adapt.h"

namespace p2p::nccl_net {

std::unique_ptr<Net> adapt_v8(void* table) {
  return std::make_unique<Adapted<abi::v8::Table, abi::v8::Properties, 8>>(table);
}

}  // namespace p2p::nccl_net
