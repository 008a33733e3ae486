// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "p2p/result.h"

/// Error codes as every message between processes carries them: 0 is success, the rest by the table of
/// docs/wire.md, whatever numbers the enumeration has here.
namespace p2p {

std::uint16_t wire_code(ErrorCode code);
inline std::uint16_t wire_code(const Status& status) { return status ? 0 : wire_code(status.error().code); }

/// True for success and for what `wire_code` makes.
bool is_wire_code(std::uint16_t code);

/// The error behind a number that is not 0; kProtocol for one that is unknown.
ErrorCode code_from_wire(std::uint16_t code);

}  // namespace p2p
