// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "p2p/result.h"

namespace p2p::engine {

/// The host and port that peers are told to dial, as the application names them (Options::announce).
struct Announcement {
  std::string host;
  std::uint16_t port = 0;  ///< 0: the port of the listener

  /// "host", "host:port", "fd00::7" or "[fd00::7]:4000"; kInvalidArgument for anything else. Names are not
  /// resolved here.
  static Result<Announcement> parse(std::string_view text);
};

}  // namespace p2p::engine
