// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace p2p::perf {

/// Bytes that depend on a seed and on their position, so that stale, misplaced and missing bytes all show.
/// `position` is the index of the first byte in the endless sequence that `seed` names.
void fill_pattern(std::span<std::byte> bytes, std::uint64_t seed, std::uint64_t position);

/// The index in `bytes` of the first one that `fill_pattern` would not have put there.
std::optional<std::size_t> find_difference(std::span<const std::byte> bytes, std::uint64_t seed,
                                           std::uint64_t position);

/// The index of the first byte that is not zero.
std::optional<std::size_t> find_nonzero(std::span<const std::byte> bytes);

/// A number that looks random and depends on every bit of `value`.
std::uint64_t mix(std::uint64_t value);

}  // namespace p2p::perf
