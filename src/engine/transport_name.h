// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "p2p/result.h"

namespace p2p::engine {

/// The transport that a word means: its own name, or what users of other engines call it (`ib`, `nccl`,
/// `tcpx`). kUnavailable, with what to set instead, for fabrics that have no transport here. Words that mean
/// nothing come back as they are.
Result<std::string> transport_name(std::string_view word);

}  // namespace p2p::engine
