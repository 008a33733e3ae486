// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "p2p/result.h"
#include "p2p/strided.h"
#include "transport/batch.h"

namespace p2p::engine {

/// Two strided memories of equally many bytes, as one is copied to the other.
struct StridedPair {
  std::byte* data = nullptr;  ///< here, where the first block begins
  std::uint64_t address = 0;  ///< there
  Strides local{};
  Strides remote{};
  std::uint64_t bytes = 0;

  /// Calls `take(local, remote, size)` for each run of bytes that is contiguous on both sides, in order.
  template <class Take>
  void for_each_piece(Take&& take) const;

  /// The same runs of bytes as rows of equal blocks, if they are such. The first one begins at `data` and
  /// `address`.
  std::optional<Repeats> repeats() const;
};

/// A transfer of strided memory, checked as far as it can be without its regions: numbers that fit the
/// address space and each other. As spans, which regions can be checked against, each has all from its lowest
/// byte to the end of its highest.
struct StridedList {
  std::vector<LocalSpan> local;
  std::vector<RemoteSpan> remote;
  std::vector<StridedPair> pairs;

  /// kInvalidArgument, with what was asked and why it cannot be, if bytes differ, there are more than
  /// Strides::kMostBlocks, or blocks that are to be written overlap; kOutOfRange if some lie beyond the
  /// address space.
  static Result<StridedList> make(Operation operation, std::span<const LocalStrided> local,
                                  std::span<const RemoteStrided> remote);
};

/// Bytes that a transfer moves: of `local` where there is nothing strided.
inline std::uint64_t bytes_of(std::span<const LocalSpan> local, std::span<const StridedPair> strided) {
  std::uint64_t bytes = 0;
  if (strided.empty()) {
    for (const LocalSpan& span : local) bytes += span.size;
  }
  for (const StridedPair& pair : strided) bytes += pair.bytes;
  return bytes;
}

/// Where the next bytes of strided memory are.
class StridedCursor {
 public:
  StridedCursor(std::uint64_t address, const Strides& strides)
      : strides_(strides), row_(address), at_(address), left_(strides.block) {}

  std::uint64_t at() const { return at_; }

  /// To the end of the block.
  std::uint64_t left() const { return left_; }

  /// At most `left`.
  void advance(std::uint64_t bytes) {
    at_ += bytes;
    left_ -= bytes;
    if (left_ != 0) return;
    left_ = strides_.block;
    at_ += static_cast<std::uint64_t>(strides_.stride) - strides_.block;
    if (++place_ != strides_.count) return;
    place_ = 0;
    at_ = row_ += static_cast<std::uint64_t>(strides_.row_stride);
  }

 private:
  const Strides strides_;
  std::uint64_t row_;
  std::uint64_t at_;
  std::uint64_t left_;
  std::uint64_t place_ = 0;
};

template <class Take>
void StridedPair::for_each_piece(Take&& take) const {
  const auto start = reinterpret_cast<std::uintptr_t>(data);
  StridedCursor here(start, local);
  StridedCursor there(address, remote);
  for (std::uint64_t left = bytes; left != 0;) {
    const std::uint64_t size = std::min(here.left(), there.left());
    // The difference may be negative: a stride is.
    take(data + static_cast<std::ptrdiff_t>(here.at() - start), there.at(), size);
    here.advance(size);
    there.advance(size);
    left -= size;
  }
}

}  // namespace p2p::engine
