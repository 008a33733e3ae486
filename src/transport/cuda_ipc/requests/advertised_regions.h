// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "base/mutex.h"
#include "p2p/memory.h"
#include "transport/transport.h"

namespace p2p::cuda_ipc {

/// Which of this process's regions were offered over which channel, so that the peer lets go of them when
/// they are taken back. Thread-safe.
class AdvertisedRegions {
 public:
  /// True for the first time: then the offer is to be sent.
  bool add(ControlLink& link, RegionId region) {
    const MutexLock lock(mutex_);
    return advertised_[&link].insert(region).second;
  }

  /// Tells every channel's peer that had it.
  void withdraw(RegionId region);

  /// The channel is gone.
  void remove(ControlLink& link) {
    const MutexLock lock(mutex_);
    advertised_.erase(&link);
  }

 private:
  Mutex mutex_;  // also held while links send, which does not block: they end with their channels
  std::map<ControlLink*, std::set<RegionId>> advertised_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::cuda_ipc
