// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <vector>

#include "base/background.h"
#include "base/mutex.h"

namespace p2p::cuda_ipc {

/// What copies that nobody waits for any more still touch: kept until they have ended, and no longer, because
/// it may be a peer's memory, which its owner wants free. A thread looks from time to time, while there is
/// something. Thread-safe.
class LateCopies {
 public:
  /// Whether they have ended. Never blocks; called by one thread at a time.
  using Ended = std::function<bool()>;

  LateCopies() = default;
  ~LateCopies();
  LateCopies(const LateCopies&) = delete;
  LateCopies& operator=(const LateCopies&) = delete;

  /// `ended` goes first, then `what`: at the latest with this.
  void keep(std::shared_ptr<const void> what, Ended ended);

 private:
  struct Late {
    std::shared_ptr<const void> what;
    Ended ended;
  };

  void look();

  Mutex mutex_;
  std::condition_variable_any stopped_;
  bool stop_ P2P_GUARDED_BY(mutex_) = false;
  std::vector<Late> late_ P2P_GUARDED_BY(mutex_);
  Background looking_{"p2p-late-copies"};
};

}  // namespace p2p::cuda_ipc
