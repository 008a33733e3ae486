// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "p2p/api.h"

namespace p2p {

/// What kind of failure it was, for programs; `Error::message` is for people.
enum class ErrorCode {
  kInvalidArgument,   ///< The call itself is wrong: sizes differ, unknown id, null pointer.
  kOutOfRange,        ///< A range lies outside the region that it names.
  kNotFound,          ///< The region, connection or device does not exist (any more).
  kPermissionDenied,  ///< A key, a secret or the operating system refused.
  kUnavailable,       ///< This machine, build or peer cannot do it; the message says why.
  kPeerGone,          ///< The peer died, hung, left or closed the connection.
  kTimedOut,          ///< The deadline passed first.
  kCancelled,         ///< `Transfer::cancel` or closing ended it.
  kMessageTooLong,    ///< A sent message is longer than the receive that it met.
  kProtocol,          ///< The other side sent what the protocol does not allow.
  kSystem,            ///< A system call or a driver failed.
  kDataMismatch,      ///< The bytes at the destination are not the source's (`PostOptions::verify`).
};

/// The name of a code without its `k`, in snake case: "peer_gone".
P2P_API std::string_view to_string(ErrorCode code);

/// Says what was attempted, on what, and the cause, in one sentence.
struct Error {
  ErrorCode code = ErrorCode::kSystem;
  std::string message;
};

/// A value, or why there is none. Nothing in this library throws, but for std::bad_alloc.
template <class T>
using Result = tl::expected<T, Error>;

/// Success, or why not.
using Status = Result<void>;

}  // namespace p2p
