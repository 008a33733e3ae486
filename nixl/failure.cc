// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "failure.h"

#include <cstdio>
#include <exception>

#include "p2p/write_log.h"

namespace p2p::nixl {

nixl_status_t to_nixl(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kOutOfRange: return NIXL_ERR_INVALID_PARAM;
    case ErrorCode::kNotFound: return NIXL_ERR_NOT_FOUND;
    case ErrorCode::kPermissionDenied: return NIXL_ERR_NOT_ALLOWED;
    case ErrorCode::kUnavailable: return NIXL_ERR_NOT_SUPPORTED;
    case ErrorCode::kPeerGone: return NIXL_ERR_REMOTE_DISCONNECT;
    case ErrorCode::kCancelled: return NIXL_ERR_CANCELED;
    case ErrorCode::kTimedOut:
    case ErrorCode::kMessageTooLong:
    case ErrorCode::kProtocol:
    case ErrorCode::kDataMismatch:
    case ErrorCode::kSystem: return NIXL_ERR_BACKEND;
  }
  return NIXL_ERR_UNKNOWN;
}

nixl_status_t refuse(const Error& error) {
  // That a peer died was said once, with the cause; callers may ask for it in a loop.
  write_log(error.code == ErrorCode::kPeerGone ? LogLevel::kDebug : LogLevel::kWarning,
            "NIXL backend TCPX: " + error.message);
  return to_nixl(error.code);
}

nixl_status_t refuse_exception() noexcept {
  try {
    throw;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "NIXL backend TCPX: %s\n", error.what());
  } catch (...) {
    std::fputs("NIXL backend TCPX: what was thrown is no exception\n", stderr);
  }
  return NIXL_ERR_BACKEND;
}

}  // namespace p2p::nixl
