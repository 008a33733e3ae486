// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/copiers.h"

#include <utility>

namespace p2p::cuda_ipc {

void Copiers::reserve(int device, std::size_t count) {
  const MutexLock lock(mutex_);
  Kept& kept = kept_[device];
  while (kept.made < count) {
    auto copier = device::Copier::open(device, limits_);
    if (!copier) return;  // `take` will say why
    kept.free.push_back(std::move(*copier));
    ++kept.made;
  }
}

Result<std::unique_ptr<device::Copier>> Copiers::take(int device) {
  {
    const MutexLock lock(mutex_);
    Kept& kept = kept_[device];
    if (!kept.free.empty()) {
      auto copier = std::move(kept.free.back());
      kept.free.pop_back();
      return copier;
    }
    ++kept.made;
  }
  return device::Copier::open(device, limits_);
}

}  // namespace p2p::cuda_ipc
