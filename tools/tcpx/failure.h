// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "p2p/result.h"

namespace tcpx::tool {

inline tl::unexpected<p2p::Error> fail(p2p::ErrorCode code, std::string message) {
  return tl::unexpected(p2p::Error{code, std::move(message)});
}

}  // namespace tcpx::tool
