// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "conformance/pattern.h"

#include <algorithm>
#include <cstring>

namespace p2p::conformance {

void fill_pattern(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = pattern_word(seed, at);
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

std::optional<std::size_t> first_mismatch(std::span<const std::byte> bytes, std::uint64_t seed) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = pattern_word(seed, at);
    const std::size_t size = std::min(sizeof word, bytes.size() - at);
    if (std::memcmp(bytes.data() + at, &word, size) == 0) continue;
    for (std::size_t i = at; i < at + size; ++i) {
      if (bytes[i] != pattern_byte(seed, i)) return i;
    }
  }
  return std::nullopt;
}

}  // namespace p2p::conformance
