// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace p2p::wire {

/// The versions of the wire that a side speaks, all from the oldest to the newest.
struct Versions {
  std::uint16_t oldest = 5;
  std::uint16_t newest = 10;
  friend bool operator==(const Versions&, const Versions&) = default;
};

/// Those of this side. docs/wire.md says how they change.
inline constexpr Versions kVersions;

/// The first in which a session outlives its connection.
inline constexpr std::uint16_t kResumes = 7;

/// From this one on channels of any transport may be opened again; before, of those that may rest.
inline constexpr std::uint16_t kReopensAll = 7;

/// From this one on a side that gives up a transport that was up says so, by a second `ChannelsReady`.
inline constexpr std::uint16_t kTellsOfLoss = 8;

/// The first in which the acceptor names other addresses by which it may be dialled again.
inline constexpr std::uint16_t kNamesAddresses = 8;

/// The first in which an offer keeps places for channels that follow those with which it serves.
inline constexpr std::uint16_t kFollows = 9;

/// The first in which a channel of `cuda_ipc` learns from its twin when that copies nothing any more.
inline constexpr std::uint16_t kLinksTwins = 10;

/// The highest that both speak; nothing if there is none.
constexpr std::optional<std::uint16_t> common(Versions mine, Versions theirs) {
  const std::uint16_t highest = std::min(mine.newest, theirs.newest);
  if (highest < std::max(mine.oldest, theirs.oldest)) return std::nullopt;
  return highest;
}

}  // namespace p2p::wire
