// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <system_error>

namespace p2p {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid_argument";
    case ErrorCode::kOutOfRange: return "out_of_range";
    case ErrorCode::kNotFound: return "not_found";
    case ErrorCode::kPermissionDenied: return "permission_denied";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kPeerGone: return "peer_gone";
    case ErrorCode::kTimedOut: return "timed_out";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kMessageTooLong: return "message_too_long";
    case ErrorCode::kProtocol: return "protocol";
    case ErrorCode::kSystem: return "system";
    case ErrorCode::kDataMismatch: return "data_mismatch";
  }
  return "unknown";
}

Error system_error(std::string_view what, int error_number) {
  const ErrorCode code =
      error_number == EPERM || error_number == EACCES ? ErrorCode::kPermissionDenied : ErrorCode::kSystem;
  return {code, fmt::format("{}: {}", what, std::generic_category().message(error_number))};
}

}  // namespace p2p
