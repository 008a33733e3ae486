// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "drivers/crypto/credentials.h"
#include "p2p/result.h"

namespace p2p::engine {

/// The pre-shared keys in a file: lines of `name:secret`, the name of up to 64 letters, digits and `._-`, or
/// empty for the key without one. A file whose first line is none such is one key without a name, of any
/// bytes. White space around a secret does not count. Refuses secrets under 16 bytes, names that come twice,
/// and a file that others than its owner and group may read or write.
Result<std::vector<crypto::NamedKey>> read_key_file(const std::string& path);

/// Refuses a file that everybody may read or write.
Status check_private(const std::string& path);

}  // namespace p2p::engine
