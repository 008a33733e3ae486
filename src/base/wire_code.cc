// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/wire_code.h"

#include <algorithm>
#include <array>

namespace p2p {
namespace {

// Index plus 1 is the number on the wire. New codes go to the end: other builds read these numbers.
constexpr std::array kCodes{
    ErrorCode::kInvalidArgument, ErrorCode::kOutOfRange, ErrorCode::kNotFound, ErrorCode::kPermissionDenied,
    ErrorCode::kUnavailable,     ErrorCode::kPeerGone,   ErrorCode::kTimedOut, ErrorCode::kCancelled,
    ErrorCode::kMessageTooLong,  ErrorCode::kProtocol,   ErrorCode::kSystem,   ErrorCode::kDataMismatch,
};

}  // namespace

std::uint16_t wire_code(ErrorCode code) {
  const auto* const found = std::find(kCodes.begin(), kCodes.end(), code);
  return static_cast<std::uint16_t>(found - kCodes.begin() + 1);
}

bool is_wire_code(std::uint16_t code) { return code <= kCodes.size(); }

ErrorCode code_from_wire(std::uint16_t code) {
  return code != 0 && is_wire_code(code) ? kCodes[code - 1] : ErrorCode::kProtocol;
}

}  // namespace p2p
