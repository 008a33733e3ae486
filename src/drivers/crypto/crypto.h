// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "base/bytes.h"
#include "p2p/result.h"

/// What the handshakes need of OpenSSL. Every call may come from any thread.
namespace p2p::crypto {

using Digest = std::array<std::byte, 32>;

/// HMAC-SHA256 of `message`. An empty key is allowed and proves nothing.
Digest hmac_sha256(ByteView key, ByteView message);

/// Fills `out` from the system's generator; kSystem if it has none to give.
Status random_bytes(std::span<std::byte> out);

/// Overwrites a secret that is not needed any more.
void wipe(std::span<std::byte> secret);

/// Compares in a time that depends on the sizes only.
bool equal(ByteView left, ByteView right);

}  // namespace p2p::crypto
