// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace p2p::conformance {

/// The byte that belongs at `offset` of memory filled with `seed`. Any two seeds and offsets look unrelated,
/// so that bytes from the wrong place are seen.
inline std::byte pattern_byte(std::uint64_t seed, std::uint64_t offset) {
  std::uint64_t x = (offset / 8 + 1) * 0x9e3779b97f4a7c15 ^ seed * 0xd1342543de82ef95;
  x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9;
  return static_cast<std::byte>((x ^ (x >> 29)) >> (offset % 8 * 8));
}

inline void fill_pattern(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern_byte(seed, i);
}

/// Without the thread sanitizer: of a peer's `sendmsg` it learns when the call has returned, which may be
/// after the bytes were received and the next test began with the same memory.
void set_all(std::span<std::byte> bytes, std::byte value);

/// Where `bytes` first differ from what `fill_pattern` with `seed` would write there.
inline std::optional<std::size_t> first_mismatch(std::span<const std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != pattern_byte(seed, i)) return i;
  }
  return std::nullopt;
}

}  // namespace p2p::conformance
