// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "engine/memory/region.h"

namespace p2p::engine {

/// Looks, now and then, whether device memory that peers were told of is still what they reach. What a peer
/// has mapped stays as it was, whatever its owner does: the peer would go on reading memory that nobody
/// writes any more, and keep it from the GPU. Its thread starts with the first region, ends with the last and
/// uses one percent of a CPU at most. Thread-safe.
class RegionWatch {
 public:
  RegionWatch() = default;
  ~RegionWatch() { stop(); }
  RegionWatch(const RegionWatch&) = delete;
  RegionWatch& operator=(const RegionWatch&) = delete;

  /// Until it is gone, or found to have lost its memory: then it is withheld from all peers.
  void add(const std::shared_ptr<Region>& region);

  /// Nothing is looked at any more.
  void stop();

 private:
  void run();
  std::vector<std::shared_ptr<Region>> watched();
  void forget(const Region& region);

  std::atomic<std::uint32_t> stop_{0};  // futex
  Mutex mutex_;
  std::vector<std::weak_ptr<Region>> regions_ P2P_GUARDED_BY(mutex_);
  bool running_ P2P_GUARDED_BY(mutex_) = false;
  std::thread thread_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
