// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "base/bytes.h"
#include "transport/stream_port.h"
#include "wire/resumption.h"

namespace p2p::engine {

/// What a connection to the open port is, told from its first bytes.
struct FirstBytes {
  enum class Kind {
    kUndecided,  ///< too few bytes: read again once `needed` have come
    kControl,    ///< of a new session, as far as its first frame's length and type say
    kStream,     ///< of a channel, which `token` names
    kResume,     ///< of a session that is resumed, which `token` names; its whole first frame has come
    kForeign,    ///< another protocol
  };

  /// So many bytes always decide.
  static constexpr std::size_t kMost = wire::Resume::kFrameBytes;

  Kind kind = Kind::kForeign;
  std::size_t needed = 0;
  StreamPort::Token token{};

  /// `bytes` are not trusted. What follows the first kMost is not looked at.
  static FirstBytes read(ByteView bytes);
};

}  // namespace p2p::engine
