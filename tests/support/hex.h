// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <span>
#include <string>

#include "p2p/memory.h"

namespace p2p::testing {

inline std::string to_hex(std::span<const std::byte> bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string hex;
  for (const std::byte byte : bytes) {
    hex += kDigits[static_cast<unsigned>(byte) >> 4];
    hex += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return hex;
}

inline std::string to_hex(const RegionDescriptor& descriptor) { return to_hex(descriptor.serialize()); }

inline Result<RegionDescriptor> from_hex(const std::string& hex) {
  std::array<std::byte, RegionDescriptor::kBytes> bytes{};
  for (std::size_t i = 0; i < bytes.size() && 2 * i + 1 < hex.size(); ++i) {
    unsigned value = 0;
    std::from_chars(hex.data() + 2 * i, hex.data() + 2 * i + 2, value, 16);
    bytes[i] = static_cast<std::byte>(value);
  }
  return RegionDescriptor::parse(bytes);
}

}  // namespace p2p::testing
