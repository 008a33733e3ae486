// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>

#include "p2p/result.h"

namespace p2p::engine {

/// What has to happen before any local memory of a transfer is touched: pending, then met or failed. One for
/// the whole transfer; lanes keep its parts until it is met, so that channels see nothing of it. Thread-safe.
class StreamDependency {
 public:
  StreamDependency() = default;
  virtual ~StreamDependency() = default;
  StreamDependency(const StreamDependency&) = delete;
  StreamDependency& operator=(const StreamDependency&) = delete;

  /// Never blocks. True from when it is first seen to be met; the error if it never will be.
  Result<bool> met() const {
    if (met_.load(std::memory_order_acquire)) return true;
    auto now = look();
    if (now && *now) met_.store(true, std::memory_order_release);
    return now;
  }

 private:
  virtual Result<bool> look() const = 0;

  mutable std::atomic<bool> met_{false};
};

/// Met when all that `cuda_stream` (cudaStream_t) has to do at the time of this call is done. Null for a
/// null stream; the reason if the stream cannot be waited for.
Result<std::shared_ptr<const StreamDependency>> dependency_behind(void* cuda_stream);

}  // namespace p2p::engine
