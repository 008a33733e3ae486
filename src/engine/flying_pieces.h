// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/underlying.h"
#include "engine/submission.h"

namespace p2p::engine {

/// The pieces that are on their way through one channel, by the ids of their batches.
class FlyingPieces {
 public:
  /// The id for the next one; nothing if enough are flying. Transports have smaller windows of their own.
  std::optional<BatchId> next_id() {
    if (free_.empty()) {
      if (pieces_.size() == kMost) return std::nullopt;
      pieces_.emplace_back();
      free_.push_back(BatchId{pieces_.size()});
    }
    return free_.back();
  }

  /// Takes a piece whose batch has the id that `next_id` gave.
  void add(Piece piece) {
    free_.pop_back();
    Piece& place = pieces_[to_underlying(piece.batch.id) - 1];
    place = std::move(piece);
  }

  /// Nothing if none has this id.
  std::optional<Piece> remove(BatchId id) {
    const std::uint64_t index = to_underlying(id) - 1;
    if (index >= pieces_.size() || !pieces_[index].submission) return std::nullopt;
    free_.push_back(id);
    return std::exchange(pieces_[index], {});
  }

  bool empty() const { return free_.size() == pieces_.size(); }

  template <class Visitor>
  void for_each(Visitor&& visit) {
    for (Piece& piece : pieces_) {
      if (piece.submission) visit(piece);
    }
  }

  void clear() {
    pieces_.clear();
    free_.clear();
  }

 private:
  static constexpr std::size_t kMost = 1024;

  std::vector<Piece> pieces_;  // by id - 1; no submission: free
  std::vector<BatchId> free_;
};

}  // namespace p2p::engine
