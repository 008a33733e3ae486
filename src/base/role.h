// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace p2p {

/// Which side of a handshake: connectors dial, acceptors are dialled.
enum class Role : std::uint8_t { kConnector, kAcceptor };

constexpr Role opposite(Role role) { return role == Role::kConnector ? Role::kAcceptor : Role::kConnector; }

}  // namespace p2p
