// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "device/copier.h"
#include "p2p/result.h"

namespace p2p::cuda_ipc {

/// Copiers made ahead of the channels that will use them: streams and pinned memory take a millisecond, which
/// the first transfer would pay. Thread-safe.
class Copiers {
 public:
  explicit Copiers(const device::Copier::Limits& limits) : limits_(limits) {}

  const device::Copier::Limits& limits() const { return limits_; }

  /// Makes as many as are missing until `count` were made for `device`.
  void reserve(int device, std::size_t count);

  /// One that was made ahead, or a new one.
  Result<std::unique_ptr<device::Copier>> take(int device);

 private:
  struct Kept {
    std::size_t made = 0;
    std::vector<std::unique_ptr<device::Copier>> free;
  };

  const device::Copier::Limits limits_;
  Mutex mutex_;
  std::map<int, Kept> kept_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::cuda_ipc
