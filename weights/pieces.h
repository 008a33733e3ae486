// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "message.h"
#include "p2p/digest.h"
#include "p2p/endpoint.h"
#include "tables.h"

namespace p2p::weights {

/// Where the bytes of a packed demand lie in someone's memory.
class Pieces {
 public:
  virtual ~Pieces() = default;
  /// Those of the packed bytes [begin, end), in order, cut there.
  virtual std::vector<Piece> within(std::uint64_t begin, std::uint64_t end) const = 0;
};

/// A subscriber's: few, and kept.
class HeldPieces : public Pieces {
 public:
  explicit HeldPieces(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}
  std::vector<Piece> within(std::uint64_t begin, std::uint64_t end) const override;
  const std::vector<Piece>& all() const { return pieces_; }

 private:
  std::vector<Piece> pieces_;
};

/// A publisher's: the regions of a plan, whose runs are worked out for the bytes that are asked for.
class OwnedPieces : public Pieces {
 public:
  /// What `Plan::make` refuses. Refers to both, which must outlive it unchanged.
  static Result<std::unique_ptr<OwnedPieces>> make(const Manifest& owned, const Demand& demand);
  std::vector<Piece> within(std::uint64_t begin, std::uint64_t end) const override;

 private:
  explicit OwnedPieces(Plan plan) : plan_(std::move(plan)) {}

  Plan plan_;
  std::vector<std::uint64_t> shard_begins_;  // packed, of each wanted shard that is not empty
  std::vector<std::size_t> shard_regions_;   // the first region of each, and one past the last
};

/// Pairs two lists of pieces of the same packed bytes: Calls `use(a's address, b's address, bytes)`.
template <class Use>
void for_each_pair(const std::vector<Piece>& a, const std::vector<Piece>& b, Use use) {
  std::uint64_t a_done = 0, b_done = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const std::uint64_t bytes = std::min(a[i].bytes - a_done, b[j].bytes - b_done);
    if (bytes > 0) use(a[i].address + a_done, b[j].address + b_done, bytes);
    a_done += bytes, b_done += bytes;
    if (a_done == a[i].bytes) ++i, a_done = 0;
    if (b_done == b[j].bytes) ++j, b_done = 0;
  }
}

/// Registrations of GPU memory, kept from one version to the next: peers map it at the first one, which takes
/// a millisecond a GiB, and not again. What is freed is found, by the engine and at the next use. Any thread.
class GpuRegions {
 public:
  using Kept = std::shared_ptr<const MemoryRegion>;

  /// That of this range, from before or new.
  Result<Kept> get(Endpoint& endpoint, void* data, std::uint64_t bytes);

 private:
  std::mutex mutex_;
  std::map<std::pair<void*, std::uint64_t>, Kept> kept_;
};

/// Memory of this process that peers may read, and write where it is of a GPU, in as few regions as can be:
/// one for ranges that touch.
class Lent {
 public:
  /// Fails where a range cannot be registered; then nothing is lent. `gpu` has those of GPUs longer.
  static Result<Lent> make(Endpoint& endpoint, GpuRegions& gpu, std::vector<Piece> ranges);

  std::vector<RegionDescriptor> descriptors() const;
  /// For own reads into it. `data` lies in one of the ranges.
  LocalSpan span(std::uint64_t address, std::uint64_t bytes) const;
  bool overlaps(const Piece& range) const;
  bool on_host() const;
  /// Starts the digest of pieces that lie in the ranges.
  Result<Digest> digest(const Endpoint& endpoint, const std::vector<Piece>& pieces) const;
  /// Copies what lies in pieces of the ranges together, or there from where it is together.
  Status gather(const Endpoint& endpoint, const std::vector<Piece>& from, std::vector<std::byte>& into) const;
  Status scatter(const Endpoint& endpoint, const std::vector<std::byte>& from,
                 const std::vector<Piece>& into) const;

 private:
  std::vector<LocalSpan> spans(const std::vector<Piece>& pieces) const;

  std::vector<GpuRegions::Kept> regions_;  // by address
};

/// A version's memory here. Both outlive it.
struct VersionMemory {
  const Pieces* pieces = nullptr;
  const Lent* lent = nullptr;  ///< has what `pieces` name
};

/// A table that peers read, kept in place.
struct LentTable {
  std::string bytes;
  MemoryRegion region;

  static Result<std::unique_ptr<LentTable>> make(Endpoint& endpoint, std::string bytes);
  TableAt at() const { return {region.descriptor(), bytes.size() <= kMostSaid ? bytes : std::string()}; }
};

/// What lies at `address` touches `last` and may be of one region with it: the same allocation, if of a GPU.
bool continues(const Piece& last, std::uint64_t address);

/// Which region of a list that is sorted by address holds a range; their number if none does.
std::size_t region_of(const std::vector<RegionDescriptor>& regions, std::uint64_t address,
                      std::uint64_t bytes);

}  // namespace p2p::weights
