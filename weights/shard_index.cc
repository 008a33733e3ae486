// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "shard_index.h"

#include <algorithm>
#include <compare>

namespace p2p::weights {

namespace {

/// Of the dimensions, the one in which the shards begin at most places.
std::size_t most_cut(const Manifest& manifest, std::uint32_t tensor, std::span<const std::uint32_t> shards) {
  std::size_t best = 0, most = 0;
  std::vector<std::uint64_t> begins(shards.size());
  for (std::size_t d = 0; d < manifest.shape(tensor).size(); ++d) {
    std::ranges::transform(shards, begins.begin(),
                           [&](std::uint32_t shard) { return manifest.shard(tensor, shard).offset[d]; });
    std::ranges::sort(begins);
    const auto places = static_cast<std::size_t>(std::ranges::unique(begins).begin() - begins.begin());
    if (places > most) best = d, most = places;
  }
  return best;
}

std::strong_ordering compare(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b) {
  return std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(), b.end());
}

std::strong_ordering compare_boxes(const Shard& a, const Shard& b) {
  if (const auto order = compare(a.offset, b.offset); order != 0) return order;
  return compare(a.size, b.size);
}

}  // namespace

ShardIndex::ShardIndex(const Manifest& manifest, std::uint32_t tensor)
    : manifest_(&manifest), tensor_(tensor) {
  for (std::uint32_t shard = 0; shard < manifest.shards(tensor); ++shard) {
    if (manifest.bytes(tensor, shard) > 0) order_.push_back(shard);
  }
  dim_ = most_cut(manifest, tensor, order_);
  sort(manifest, tensor);
  std::uint64_t last_end = 0;
  for (std::uint32_t at = 0; at < order_.size(); ++at) {
    const Shard shard = manifest.shard(tensor, order_[at]);
    if (at > 0 && compare_boxes(manifest.shard(tensor, order_[at - 1]), shard) == 0) {
      ++rows_.back().replicas;
      continue;
    }
    last_end = std::max(last_end, shard.offset[dim_] + shard.size[dim_]);
    rows_.push_back({shard.offset[dim_], last_end, at, 1});
  }
}

// Rank and address decide among replicas, so that the order in which shards were added does not.
void ShardIndex::sort(const Manifest& manifest, std::uint32_t tensor) {
  std::ranges::sort(order_, [&](std::uint32_t left, std::uint32_t right) {
    const Shard a = manifest.shard(tensor, left), b = manifest.shard(tensor, right);
    if (a.offset[dim_] != b.offset[dim_]) return a.offset[dim_] < b.offset[dim_];
    if (const auto order = compare_boxes(a, b); order != 0) return order < 0;
    return std::pair(a.rank, a.address) < std::pair(b.rank, b.address);
  });
}

std::optional<std::pair<std::uint32_t, std::uint32_t>> ShardIndex::overlap() const {
  for (std::size_t at = 0; at < rows_.size(); ++at) {
    const Shard shard = manifest_->shard(tensor_, order_[rows_[at].first]);
    const std::uint64_t end = shard.offset[dim_] + shard.size[dim_];
    for (std::size_t next = at + 1; next < rows_.size() && rows_[next].begin < end; ++next) {
      if (meets(rows_[next], shard.offset, shard.size)) {
        return std::pair(order_[rows_[at].first], order_[rows_[next].first]);
      }
    }
  }
  return std::nullopt;
}

std::size_t ShardIndex::first_past(std::uint64_t position) const {
  const auto found = std::ranges::upper_bound(rows_, position, {}, &Row::last_end);
  return static_cast<std::size_t>(found - rows_.begin());
}

bool ShardIndex::meets(const Row& row, std::span<const std::uint64_t> offset,
                       std::span<const std::uint64_t> size) const {
  const Shard shard = manifest_->shard(tensor_, order_[row.first]);
  for (std::size_t d = 0; d < offset.size(); ++d) {
    if (shard.offset[d] >= offset[d] + size[d] || offset[d] >= shard.offset[d] + shard.size[d]) return false;
  }
  return true;
}

}  // namespace p2p::weights
