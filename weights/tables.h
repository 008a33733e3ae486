// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "p2p/memory.h"
#include "p2p/result.h"
#include "p2p/weights/plan.h"

namespace p2p::weights {

/// The most bytes of a table that is read from a peer.
inline constexpr std::uint64_t kMostTableBytes = std::uint64_t{512} << 20;

/// The most chunks that a demand is cut into.
inline constexpr std::uint64_t kMostChunks = std::uint64_t{1} << 20;

/// The most bytes of a chunk.
inline constexpr std::uint64_t kMostChunkBytes = std::uint64_t{64} << 20;

/// What a subscriber wants, as its class has it: the shards lie packed, one after another in the order of the
/// manifest, and their addresses count from 0 there. Cut into chunks of equal size; the last one is shorter.
struct Demand {
  Manifest wanted;
  std::vector<Rename> renames;
  std::uint64_t bytes = 0;
  std::uint64_t chunk_bytes = 0;

  std::uint32_t chunks() const { return static_cast<std::uint32_t>((bytes + chunk_bytes - 1) / chunk_bytes); }
  std::uint64_t begin(std::uint32_t chunk) const { return chunk * chunk_bytes; }
  std::uint64_t end(std::uint32_t chunk) const { return std::min(bytes, (chunk + 1) * chunk_bytes); }

  /// `chunk_bytes` 0: 4 to 32 MiB, so that a chain is short against the whole.
  static Result<Demand> make(const Manifest& wanted, std::vector<Rename> renames, std::uint64_t chunk_bytes);

  std::string encode() const;
  static Result<Demand> decode(std::string_view table);
};

/// Of what `Demand::encode` gave: names the class.
std::uint64_t digest_of(std::string_view bytes);

/// What a publisher holds: its manifest with addresses, and the memory that may be read.
struct OwnedTable {
  Manifest owned;
  std::vector<RegionDescriptor> regions;  ///< by address

  static std::string encode(const Manifest& owned, const std::vector<RegionDescriptor>& regions);
  static Result<OwnedTable> decode(std::string_view table);
};

/// Bytes of the packed demand that lie in a row in someone's memory.
struct Piece {
  std::uint64_t packed = 0;  ///< where in the demand
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const Piece&, const Piece&) = default;
};

/// What a subscriber holds: pieces that fill the demand without gaps, and the memory that may be read.
struct HeldTable {
  std::vector<Piece> pieces;
  std::vector<RegionDescriptor> regions;  ///< by address

  static std::string encode(const std::vector<Piece>& pieces, const std::vector<RegionDescriptor>& regions);
  /// `bytes`: of the demand.
  static Result<HeldTable> decode(std::string_view table, std::uint64_t bytes);
};

}  // namespace p2p::weights
