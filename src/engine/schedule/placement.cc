// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/placement.h"

#include "base/log.h"
#include "drivers/cuda/place.h"

namespace p2p::engine {

Result<topology::Cpus> Placement::near_device(int device) {
  const auto address = cuda::bus_id_of(device);
  if (!address) return tl::unexpected(address.error());
  return topology::cpus_near(*address);
}

Placement::Placement(std::vector<pthread_t> threads, Near near)
    : threads_(std::move(threads)),
      near_(std::move(near)),
      allowed_(topology::cpus_of(::pthread_self()).value_or(topology::Cpus{})) {}

void Placement::use(int device) {
  {
    const MutexLock lock(mutex_);
    if (!devices_.insert(device).second) return;
  }
  const auto cpus = near_(device);
  if (!cpus) {
    log(LogLevel::kDebug, "threads are not placed for CUDA device {}: {}", device, cpus.error().message);
    return;
  }
  const MutexLock lock(mutex_);
  cpus_.insert(cpus->begin(), cpus->end());
  for (const pthread_t thread : threads_) topology::keep_on(thread, cpus_, allowed_);
}

}  // namespace p2p::engine
