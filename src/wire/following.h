// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/bytes.h"

namespace p2p::wire {

/// In an offer or answer, in place of the address of a channel that follows: it is opened once the first ones
/// serve.
inline Bytes following() {
  const ByteView text = as_bytes("follows");
  return {text.begin(), text.end()};
}

}  // namespace p2p::wire
