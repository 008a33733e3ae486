// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "p2p/memory.h"
#include "p2p/result.h"

namespace p2p::nixl {

/// Where an agent listens: what its peers load as connection info.
struct ConnInfo {
  /// Always this long. Little endian: 0 mark 8 bytes; 8 version u32; 12 port u16; 14 length of the address
  /// u16; 16 incarnation u64; 24 address as text, zero-filled to 88; 88 zero to 120; 120 FNV-1a of all before
  /// u64.
  static constexpr std::size_t kBytes = 128;

  std::string address;  ///< or the name that is announced
  std::uint16_t port = 0;
  Incarnation incarnation = 0;

  /// kInvalidArgument for an address that does not fit.
  Result<std::string> encode() const;

  /// kInvalidArgument unless `blob` is what `encode` makes; every byte of it is checked.
  static Result<ConnInfo> decode(std::string_view blob);

  friend bool operator==(const ConnInfo&, const ConnInfo&) = default;
};

}  // namespace p2p::nixl
