// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "p2p/result.h"

namespace p2p::engine {

/// What peers are told to dial, as the application names it.
struct Announcement {
  std::string host;
  std::uint16_t port = 0;  ///< 0: the listener's own

  /// "host", "host:port", "fd00::7", "[fd00::7]:4000"; kInvalidArgument for anything else.
  static Result<Announcement> parse(std::string_view text);
};

}  // namespace p2p::engine
