// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "support/memory.h"

namespace p2p::conformance {

/// The eight bytes that belong at `offset`, a multiple of eight, of memory filled with `seed`. Any two seeds
/// and offsets look unrelated, so that bytes from the wrong place are seen.
inline std::uint64_t pattern_word(std::uint64_t seed, std::uint64_t offset) {
  std::uint64_t x = (offset / 8 + 1) * 0x9e3779b97f4a7c15 ^ seed * 0xd1342543de82ef95;
  x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9;
  return x ^ (x >> 29);
}

inline std::byte pattern_byte(std::uint64_t seed, std::uint64_t offset) {
  return static_cast<std::byte>(pattern_word(seed, offset) >> (offset % 8 * 8));
}

void fill_pattern(std::span<std::byte> bytes, std::uint64_t seed);

/// Where `bytes` first differ from what `fill_pattern` with `seed` would write there.
std::optional<std::size_t> first_mismatch(std::span<const std::byte> bytes, std::uint64_t seed);

/// Where the sanitizers do not look: of a peer's `sendmsg` that of threads learns when the call has returned,
/// which may be after the bytes were received and the next test began with the same memory.
using testing::set_all;

}  // namespace p2p::conformance
