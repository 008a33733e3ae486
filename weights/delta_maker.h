// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "delta.h"
#include "holding.h"
#include "jobs.h"
#include "pieces.h"

namespace p2p::weights {

/// Hashes the chunks that a publisher has of a class, and makes their deltas: several at a time, which are
/// told in order. By the processor: memory of GPUs comes to the host for it. Its end waits for those under
/// way. Used with the node's lock held.
class DeltaMaker {
 public:
  /// All outlive it, as does what the pieces refer to.
  DeltaMaker(const Endpoint& endpoint, Jobs& jobs, Holding& holding, VersionMemory fresh,
             std::unique_ptr<Pieces> base_pieces, const Lent& base_lent);

  /// Starts a chunk, and tells of those that are made. False: nothing has come of it yet. An error: memory
  /// cannot be read, of the base as a rule.
  Result<bool> step();

 private:
  struct Made {
    std::uint64_t digest = 0;
    std::string delta;  // empty: the chunk is sent whole
  };
  Result<Made> make(std::uint32_t chunk, Room& room) const;

  const Endpoint& endpoint_;
  Jobs& jobs_;
  Holding& holding_;
  const VersionMemory fresh_;
  const std::unique_ptr<Pieces> base_pieces_;
  const Lent& base_lent_;
  const std::vector<Grid> grids_;
  std::deque<Job<Made>> making_;  // those after what the holding has, in order; ends first
};

}  // namespace p2p::weights
