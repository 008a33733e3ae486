// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/peer_text.h"
#include "p2p/memory.h"

/// By which a side that moved bytes compares them with the peer's: over the control connection.
namespace p2p::wire {

// Of one query, and queries of one side that are not answered yet: so many that GPUs hash while others are
// listed.
inline constexpr std::size_t kMostDigestRanges = 16384;
inline constexpr std::uint64_t kMostDigestBytes = std::uint64_t{1} << 30;
inline constexpr unsigned kMostDigestQueries = 16;

struct DigestRegion {
  std::uint32_t region = 0;
  RegionKey key{};
  friend bool operator==(const DigestRegion&, const DigestRegion&) = default;
};

/// So many ranges of one size, in one region.
struct DigestRun {
  std::uint32_t region = 0;  ///< its place among the query's
  std::uint32_t ranges = 0;
  std::uint64_t size = 0;  ///< of each
  friend bool operator==(const DigestRun&, const DigestRun&) = default;
};

/// Asks the owner for the digest (p2p/digest.h) of ranges as if they lay in a row. Of thousands of blocks of
/// one size no more than the addresses is sent.
struct DigestQuery {
  std::uint64_t query = 0;
  std::vector<DigestRegion> regions;
  std::vector<DigestRun> runs;
  std::vector<std::uint64_t> addresses;  ///< where the ranges of all runs begin, one after the other
  friend bool operator==(const DigestQuery&, const DigestQuery&) = default;
};

struct DigestAnswer {
  std::uint64_t query = 0;
  std::uint16_t error = 0;  ///< 0, or 1 + the ErrorCode
  PeerText message;
  std::uint64_t digest = 0;
  friend bool operator==(const DigestAnswer&, const DigestAnswer&) = default;
};

}  // namespace p2p::wire
