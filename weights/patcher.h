// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "jobs.h"
#include "pieces.h"

namespace p2p::weights {

/// Makes chunks of deltas and of the version that these are based on, which is here: in other memory, or in
/// that of the new version, where it is replaced chunk by chunk. By the processor: chunks in the memory of
/// GPUs come to the host for it, and go back. Used by the node's thread.
class Patcher {
 public:
  /// All outlive it, and what it has started.
  Patcher(Node& node, VersionMemory into, const Demand& demand)
      : endpoint_(node.endpoint()),
        into_(into),
        demand_(demand),
        whole_(demand.chunks()),
        jobs_(node.wake()) {}

  /// Where the base lies; none: it is not here, or not any more. What was started goes on with the one
  /// before.
  void use(std::optional<VersionMemory> base) { base_ = base; }
  bool active() const { return base_.has_value(); }
  bool takes(std::uint32_t chunk) const { return active() && !whole_[chunk]; }
  /// No delta of it from now on: its memory is written, or a delta was wrong.
  void take_whole(std::uint32_t chunk) { whole_[chunk] = true; }

  /// The digest of what the delta makes, or none where it makes nothing. If it is not `digest`, no memory has
  /// changed. An error: memory of the base cannot be read, or that of the chunk written. Not valid: not now.
  Job<std::optional<std::uint64_t>> start(std::uint32_t chunk, std::string_view delta, std::uint64_t digest);

 private:
  const Endpoint& endpoint_;
  const VersionMemory into_;
  const Demand& demand_;
  std::optional<VersionMemory> base_;
  std::vector<bool> whole_;
  Jobs jobs_;
};

}  // namespace p2p::weights
