// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "conformance/pattern.h"

namespace p2p::conformance {

void set_all(std::span<std::byte> bytes, std::byte value) {
  for (std::byte& byte : bytes) byte = value;
}

}  // namespace p2p::conformance
