// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/bytes.h"
#include "p2p/result.h"

namespace p2p::engine {

/// The pre-shared key in a file: its bytes without surrounding white space. Refuses an empty key, one under
/// 16 bytes, and a file that others than its owner and group may read or write.
Result<Bytes> read_key_file(const std::string& path);

}  // namespace p2p::engine
