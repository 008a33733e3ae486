// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "drivers/crypto/credentials.h"
#include "p2p/result.h"

namespace p2p::engine {

/// The pre-shared keys in a file: lines of `name:secret`. The name has up to 64 of letters, digits and `._-`,
/// or is empty for a key without a name. If the first line does not look so, the whole file is one key
/// without a name, of any bytes. White space around a secret is not part of it. kInvalidArgument for a secret
/// under 16 bytes, a name that comes twice, and a file of over 64 KiB; kPermissionDenied for a file that
/// others than its owner and group may read or write.
Result<std::vector<crypto::NamedKey>> read_key_file(const std::string& path);

/// kPermissionDenied for a file that others than its owner and group may read or write.
Status check_private(const std::string& path);

}  // namespace p2p::engine
