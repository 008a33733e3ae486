// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "p2p/result.h"
#include "p2p/weights/manifest.h"

namespace p2p::weights {

/// Says that a box of a wanted tensor is filled from a box of an owned tensor of another name: a fused tensor
/// from its parts, or a part from a fused tensor. Numbers are elements, one for each dimension.
struct Rename {
  std::string wanted;
  std::string owned;
  std::vector<std::uint64_t> wanted_offset{};  ///< empty: 0
  std::vector<std::uint64_t> owned_offset{};   ///< empty: 0
  std::vector<std::uint64_t> size{};           ///< of both boxes; empty: the shape of the owned tensor
};

/// Bytes that go from one shard to one other: `run` bytes, repeated at each level.
struct Region {
  struct Level {
    std::uint64_t count = 1;
    std::int64_t source_stride = 0;  ///< bytes
    std::int64_t target_stride = 0;  ///< bytes
  };
  std::uint32_t source_rank = 0;
  std::uint32_t target_rank = 0;
  std::uint64_t source = 0;              ///< address in the owner's process
  std::uint64_t target = 0;              ///< address in the wanting one's
  std::uint64_t run = 0;                 ///< bytes without a gap on either side
  std::size_t depth = 0;                 ///< how many of `levels` count
  std::array<Level, kMaxDims> levels{};  ///< the innermost first

  std::uint64_t bytes() const;
};

/// Calls `use(source, target, bytes)` for each run of a region.
template <class Use>
void for_each_run(const Region& region, Use use) {
  std::array<std::uint64_t, kMaxDims> index{};
  std::uint64_t source = region.source, target = region.target;
  for (;;) {
    use(source, target, region.run);
    std::size_t at = 0;
    for (; at < region.depth; ++at) {
      const Region::Level& level = region.levels[at];
      source += static_cast<std::uint64_t>(level.source_stride);
      target += static_cast<std::uint64_t>(level.target_stride);
      if (++index[at] < level.count) break;
      index[at] = 0;
      source -= static_cast<std::uint64_t>(level.source_stride) * level.count;
      target -= static_cast<std::uint64_t>(level.target_stride) * level.count;
    }
    if (at == region.depth) return;
  }
}

/// Which bytes go where, so that every wanted shard is filled once from owned ones. Equal manifests and rules
/// give equal plans on every rank. Refers to both manifests, which must outlive it unchanged.
class Plan {
 public:
  /// kInvalidArgument, kNotFound: an owned tensor has shards that overlap without being equal, a wanted
  /// element has no owner, or names, types, shapes or rules do not meet. The error names the tensor.
  static Result<Plan> make(const Manifest& owned, const Manifest& wanted,
                           std::span<const Rename> renames = {});

  /// Regions, in the order of the wanted tensors and of their shards.
  std::size_t size() const { return pairs_.size(); }
  Region region(std::size_t index) const;

  std::uint64_t bytes() const { return bytes_; }  ///< of all regions

 private:
  friend class Planner;

  /// A box of a wanted tensor with the box of an owned one that fills it.
  struct Part {
    std::uint32_t owned = 0;
    std::uint32_t wanted = 0;
    std::array<std::uint64_t, kMaxDims> owned_offset{};
    std::array<std::uint64_t, kMaxDims> wanted_offset{};
    std::array<std::uint64_t, kMaxDims> size{};
  };
  /// Two shards that meet in a part. Their region is worked out when it is asked for: there may be millions.
  struct Pair {
    std::uint32_t part = 0;
    std::uint32_t owned = 0;   // shard of the part's owned tensor
    std::uint32_t wanted = 0;  // shard of its wanted tensor
  };

  const Manifest* owned_ = nullptr;
  const Manifest* wanted_ = nullptr;
  std::vector<Part> parts_;
  std::vector<Pair> pairs_;
  std::uint64_t bytes_ = 0;
};

}  // namespace p2p::weights
