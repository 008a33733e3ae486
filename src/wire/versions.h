// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace p2p::wire {

/// The versions of the wire that a side speaks, all from the oldest to the newest.
struct Versions {
  std::uint16_t oldest = 1;
  std::uint16_t newest = 1;
  friend bool operator==(const Versions&, const Versions&) = default;
};

/// Those of this side. docs/wire.md says how they change.
inline constexpr Versions kVersions;

/// The highest that both speak; nothing if there is none.
constexpr std::optional<std::uint16_t> common(Versions mine, Versions theirs) {
  const std::uint16_t highest = std::min(mine.newest, theirs.newest);
  if (highest < std::max(mine.oldest, theirs.oldest)) return std::nullopt;
  return highest;
}

}  // namespace p2p::wire
