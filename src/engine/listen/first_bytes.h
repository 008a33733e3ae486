// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "base/bytes.h"
#include "transport/stream_port.h"

namespace p2p::engine {

/// What the first bytes of a connection say that it is.
struct FirstBytes {
  enum class Kind {
    kUndecided,  ///< `needed` bytes tell more
    kControl,    ///< of a session, as far as its first frame's length and type go
    kStream,     ///< for a channel: `token`
    kResume,     ///< for a session that goes on: `token`
    kForeign,    ///< nothing that this library speaks
  };

  /// Bytes that decide in any case.
  static constexpr std::size_t kMost = StreamPort::kPrefixBytes;

  Kind kind = Kind::kForeign;
  std::size_t needed = 0;
  StreamPort::Token token{};

  /// `bytes` come from a stranger; those behind the first kMost do not matter.
  static FirstBytes read(ByteView bytes);
};

}  // namespace p2p::engine
