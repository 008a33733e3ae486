// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include "base/mutex.h"
#include "p2p/memory.h"
#include "p2p/result.h"

namespace p2p::engine {

/// Keys for regions, which nobody can guess. The system's generator is asked for many at once: a question for
/// each takes longer than all else that a registration does. Not for use on both sides of a fork, which would
/// draw the same ones. Thread-safe.
class RegionKeys {
 public:
  /// How many are drawn at once.
  static constexpr std::size_t kBlock = 128;

  RegionKeys() = default;
  ~RegionKeys();
  RegionKeys(const RegionKeys&) = delete;
  RegionKeys& operator=(const RegionKeys&) = delete;

  /// One that was not given before, and of which nothing stays here. kSystem if the system has none.
  Result<RegionKey> draw();

 private:
  Mutex mutex_;
  std::array<RegionKey, kBlock> block_ P2P_GUARDED_BY(mutex_){};
  std::size_t left_ P2P_GUARDED_BY(mutex_) = 0;  // at the front of the block
};

}  // namespace p2p::engine
