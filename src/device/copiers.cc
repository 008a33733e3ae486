// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/copiers.h"

#include <utility>

namespace p2p::device {

Result<bool> Copiers::make_one(int device, std::size_t count) {
  {
    const MutexLock lock(mutex_);
    Kept& kept = kept_[device];
    if (kept.made >= count) return false;
    ++kept.made;
  }
  // Without the lock, so that nobody who takes one waits for it.
  auto copier = open_(device, limits_);
  const MutexLock lock(mutex_);
  Kept& kept = kept_[device];
  if (!copier) {
    --kept.made;
    return tl::unexpected(std::move(copier.error()));
  }
  kept.free.push_back(std::move(*copier));
  return true;
}

Status Copiers::reserve(int device, std::size_t count) {
  for (;;) {
    const auto made = make_one(device, count);
    if (!made) return tl::unexpected(made.error());
    if (!*made) return {};
  }
}

Result<std::unique_ptr<Copier>> Copiers::take(int device) {
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
  auto copier = open_(device, limits_);
  if (!copier) {
    const MutexLock lock(mutex_);
    --kept_[device].made;
  }
  return copier;
}

bool Copiers::give_back(std::unique_ptr<Copier> copier) {
  if (!copier) return true;
  copier->dismiss();
  const int device = copier->device();
  const bool good = copier->unused();
  const bool through = good || copier->settle();
  if (!good) copier.reset();
  const MutexLock lock(mutex_);
  Kept& kept = kept_[device];
  if (good) {
    kept.free.push_back(std::move(copier));
  } else {
    --kept.made;
  }
  return through;
}

void Copiers::for_each_free(int device, const std::function<void(Copier&)>& visit) {
  std::size_t left = 0;
  {
    const MutexLock lock(mutex_);
    left = kept_[device].free.size();
  }
  for (; left != 0; --left) {
    std::unique_ptr<Copier> copier;
    {
      const MutexLock lock(mutex_);
      auto& free = kept_[device].free;
      if (free.empty()) return;
      copier = std::move(free.front());
      free.erase(free.begin());
    }
    visit(*copier);
    const MutexLock lock(mutex_);
    kept_[device].free.push_back(std::move(copier));
  }
}

}  // namespace p2p::device
