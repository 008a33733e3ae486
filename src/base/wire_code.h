// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "p2p/result.h"

/// The numbers by which messages carry error codes: 0 is success, the others are listed in docs/wire.md. They
/// do not follow the enumeration here, which may change.
namespace p2p {

std::uint16_t wire_code(ErrorCode code);
inline std::uint16_t wire_code(const Status& status) { return status ? 0 : wire_code(status.error().code); }

/// True for success and for what `wire_code` makes.
bool is_wire_code(std::uint16_t code);

/// The error code of a number other than 0; kProtocol for an unknown number.
ErrorCode code_from_wire(std::uint16_t code);

}  // namespace p2p
