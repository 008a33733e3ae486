// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "p2p/api.h"
#include "p2p/result.h"

namespace p2p {

/// A host as people write it, with a port or without: the one way in which this library reads it, wherever a
/// host is named.
struct P2P_API HostPort {
  std::string host;                   ///< a name, or a numeric address; of IPv6 without brackets
  std::optional<std::uint16_t> port;  ///< none: the text names none

  /// "name", "name:4000", "10.0.0.7", "fd00::7", "fe80::7%eth0", "[fd00::7]", "[fd00::7]:4000". An IPv4
  /// address has four decimal numbers. kInvalidArgument, with the cause, for anything else. Looks nothing up.
  static Result<HostPort> parse(std::string_view text);

  /// The port of the text, else `other`; kInvalidArgument if both are given (not 0) and differ.
  Result<std::uint16_t> port_or(std::uint16_t other) const;

  /// As `parse` reads it, with brackets where they are needed.
  std::string text() const;

  /// An address, not a name.
  bool is_numeric() const;
};

}  // namespace p2p
