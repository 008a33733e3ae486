// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "p2p/weights/manifest.h"

namespace p2p::weights {

/// The shards of one tensor, sorted along the dimension that cuts it most, so that those that meet a box are
/// found without a look at the others. Equal boxes are replicas and kept as one.
class ShardIndex {
 public:
  ShardIndex(const Manifest& manifest, std::uint32_t tensor);

  /// Two shards that overlap without being equal.
  std::optional<std::pair<std::uint32_t, std::uint32_t>> overlap() const;

  /// Calls `use(shard)` for one shard of each distinct box that meets the given one. Which of its replicas
  /// that is depends on `rank` alone: different ranks take different ones.
  template <class Use>
  void for_each(std::span<const std::uint64_t> offset, std::span<const std::uint64_t> size,
                std::uint32_t rank, Use use) const {
    const std::uint64_t end = offset[dim_] + size[dim_];
    for (std::size_t at = first_past(offset[dim_]); at < rows_.size() && rows_[at].begin < end; ++at) {
      const Row& row = rows_[at];
      if (meets(row, offset, size)) use(order_[row.first + rank % row.replicas]);
    }
  }

 private:
  /// A distinct box.
  struct Row {
    std::uint64_t begin = 0;     // in the sorted dimension
    std::uint64_t last_end = 0;  // the largest end of this row and all before it
    std::uint32_t first = 0;     // its first shard within order_
    std::uint32_t replicas = 0;
  };

  void sort(const Manifest& manifest, std::uint32_t tensor);
  std::size_t first_past(std::uint64_t position) const;
  bool meets(const Row& row, std::span<const std::uint64_t> offset,
             std::span<const std::uint64_t> size) const;

  const Manifest* manifest_;
  std::uint32_t tensor_;
  std::size_t dim_ = 0;
  std::vector<Row> rows_;
  std::vector<std::uint32_t> order_;
};

}  // namespace p2p::weights
