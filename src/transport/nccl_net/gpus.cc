// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/gpus.h"

#include "base/error.h"

namespace p2p::nccl_net {

Status Gpus::add_memory(int device, bool private_memory) {
  const MutexLock lock(mutex_);
  if (private_memory) {
    if (auto alone = check_private(device); !alone) return alone;
  }
  const std::optional<int> only = private_memory ? device : only_;
  if (!devices_.contains(device)) {
    for (const int other : devices_) {
      if (!only || *only == other) {
        if (auto reached = reach_(other, device); !reached) return reached;
      }
      if (!only || *only == device) {
        if (auto reached = reach_(device, other); !reached) return reached;
      }
    }
  }
  devices_.insert(device);
  only_ = only;
  return {};
}

Status Gpus::check_private(int device) const {
  if (only_ && *only_ != device) {
    return fail(
        ErrorCode::kUnavailable,
        "memory of CUDA devices {} and {} that other devices cannot be let into: only one of them can "
        "have channels",
        *only_, device);
  }
  for (const int other : with_channels_) {
    if (other == device) continue;
    return fail(
        ErrorCode::kUnavailable,
        "memory of CUDA device {} that other devices cannot be let into, while channels serve device {}",
        device, other);
  }
  return {};
}

std::vector<int> Gpus::for_channels(int fallback) {
  const MutexLock lock(mutex_);
  if (devices_.empty()) devices_.insert(fallback);
  std::vector<int> chosen;
  for (const int device : devices_) {
    if (!may_have_channels(device)) continue;
    chosen.push_back(device);
    with_channels_.insert(device);
  }
  return chosen;
}

}  // namespace p2p::nccl_net
