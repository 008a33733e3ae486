// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/requests/advertised_regions.h"

#include "transport/cuda_ipc/requests/channel_messages.h"

namespace p2p::cuda_ipc {

void AdvertisedRegions::withdraw(RegionId region) {
  const MutexLock lock(mutex_);
  for (auto& [link, regions] : advertised_) {
    if (regions.erase(region) != 0) link->send(encode(RegionWithdrawn{region}));
  }
}

}  // namespace p2p::cuda_ipc
