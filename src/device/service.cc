// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/service.h"

#include <algorithm>
#include <thread>

namespace p2p::device {
namespace {

// Of a GPU's unpacker, so that the device has the next one when one ends.
constexpr std::size_t kLaunches = 4;

}  // namespace

Result<std::shared_ptr<Unpacker>> Service::unpacker(int device) {
  const MutexLock lock(mutex_);
  if (auto unpacker = unpackers_[device].lock()) return unpacker;
  Unpacker::Limits limits{.grid = {.ctas = gpu_blocks_}, .launches = kLaunches};
  if (gpu_blocks_ == 0) limits.bulk_bytes = 0;
  if (device < 0) limits.launches = std::max(2U, std::thread::hardware_concurrency());
  auto unpacker = Unpacker::open(device, limits);
  if (unpacker) unpackers_[device] = *unpacker;
  return unpacker;
}

}  // namespace p2p::device
