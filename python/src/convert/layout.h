// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "p2p/strided.h"

namespace p2p::python {

/// A dimension of an array. Strides may be negative, or 0.
struct Dimension {
  std::uint64_t extent = 0;
  std::int64_t stride = 0;  ///< bytes
};

/// How the elements of an array lie. A run is as many elements as lie side by side in the order of their
/// indices, the last index first; all runs of an array have the same length.
class Layout {
 public:
  /// The most runs that one transfer is given as a list.
  static constexpr std::size_t kMostRuns = std::size_t{1} << 20;

  Layout() = default;  ///< one run

  /// Of `item` bytes an element; the last dimension comes last. One without elements is one run.
  Layout(std::size_t item, std::vector<Dimension> dimensions);

  bool one_run() const { return along_.empty(); }
  std::size_t run() const { return run_; }  ///< bytes; unknown (0) of Layout()

  /// How many runs there are; kMostRuns + 1 stands for all numbers above.
  std::size_t runs() const;

  /// The runs as rows of blocks; nothing if they have more levels, or are one.
  std::optional<Strides> strides() const;

  /// Whether elements may share bytes, as those of an array that is broadcast do.
  bool overlaps() const;

  /// Of an array whose first element is at `address`, the lowest address and the bytes from there to the
  /// end of the highest, gaps and all. Not of Layout().
  std::pair<std::uint64_t, std::size_t> range(std::uint64_t address) const;

  /// Calls `take` with each run's address, in the order of the indices.
  template <class Take>
  void for_each_run(std::uint64_t address, Take&& take) const;

  /// Shape, strides and runs, for messages.
  std::string text() const;

 private:
  std::vector<Dimension> dimensions_;  // as given, of more than one run
  std::vector<Dimension> along_;       // those along which runs repeat, neighbours joined
  std::size_t run_ = 0;
};

template <class Take>
void Layout::for_each_run(std::uint64_t address, Take&& take) const {
  std::vector<std::uint64_t> index(along_.size());
  for (;;) {
    take(address);
    std::size_t at = along_.size();
    for (;; --at) {
      if (at == 0) return;
      const auto& [extent, stride] = along_[at - 1];
      address += static_cast<std::uint64_t>(stride);
      if (++index[at - 1] != extent) break;
      address -= static_cast<std::uint64_t>(stride) * extent;
      index[at - 1] = 0;
    }
  }
}

}  // namespace p2p::python
