// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "abi/types.h"
#include "p2p/result.h"

namespace p2p::nixl {

inline tl::unexpected<Error> failure(ErrorCode code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}

/// The code that agents know. kPeerGone is NIXL_ERR_REMOTE_DISCONNECT: they key their recovery on it.
nixl_status_t to_nixl(ErrorCode code);

/// The same, with the sentence in the log, since an agent passes on the code alone.
nixl_status_t refuse(const Error& error);

/// For what a call of an agent has thrown, in a `catch`: most agents would end by it. Takes no memory.
nixl_status_t refuse_exception() noexcept;

}  // namespace p2p::nixl
