// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "pieces.h"

namespace p2p::weights {

/// Makes chunks of deltas and of the version that these are based on, which is here: in other memory, or in
/// that of the new version, where it is replaced chunk by chunk. By the processor: chunks in the memory of
/// GPUs come to the host for it, and go back. Used by the node's thread.
class Patcher {
 public:
  /// All outlive it.
  Patcher(const Endpoint& endpoint, HeldMemory into, const Demand& demand)
      : endpoint_(endpoint), into_(into), demand_(demand), whole_(demand.chunks()) {}

  /// Where the base lies; none: it is not here, or not any more.
  void use(std::optional<HeldMemory> base) { base_ = base; }
  bool active() const { return base_.has_value(); }
  bool takes(std::uint32_t chunk) const { return active() && !whole_[chunk]; }
  /// No delta of it from now on: its memory is written, or a delta was wrong.
  void take_whole(std::uint32_t chunk) { whole_[chunk] = true; }

  /// False: the delta makes other bytes than those of the digest. Then no memory has changed. An error:
  /// memory of the base cannot be read, or that of the chunk written.
  Result<bool> make(std::uint32_t chunk, std::string_view delta, std::uint64_t digest);

 private:
  const Endpoint& endpoint_;
  const HeldMemory into_;
  const Demand& demand_;
  std::optional<HeldMemory> base_;
  std::vector<bool> whole_;
  std::vector<std::byte> made_;  // a chunk
};

}  // namespace p2p::weights
