// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/service.h"

#include <algorithm>
#include <thread>

namespace p2p::device {
namespace {

// Of a GPU's unpacker, so that the device has the next one when one ends.
constexpr std::size_t kLaunches = 4;
// Pinned slots that are made ahead for one stream.
constexpr std::size_t kSlotsPerStream = 8;
// Thread blocks with which one stream's slot is filled or emptied: PCIe needs no more.
constexpr unsigned kCopyBlocks = 8;

// By kernel however long the run, by copy engine if kernels may have no thread blocks at all: with many
// streams under way kernels were quicker at all sizes.
StagingPool::Limits staging_limits(const Options& options) {
  return {.slot_bytes = Service::kSlotBytes,
          .slots_per_stream = kSlotsPerStream,
          .slots = options.gpu_staging_bytes / Service::kSlotBytes,
          .copier = {.grid = {.ctas = std::min(options.gpu_blocks, kCopyBlocks)},
                     .bulk_bytes = all_by_kernel(options.gpu_blocks),
                     .blocks = Service::kSlotPieces,
                     .lists = Service::kStreamSlots,
                     .standby_ctas = std::min(options.gpu_blocks, options.gpu_standby_blocks)}};
}

}  // namespace

Service::Service(const Options& options)
    : gpu_blocks_(options.gpu_blocks), staging_(std::make_shared<StagingPool>(staging_limits(options))) {}

Result<std::shared_ptr<Unpacker>> Service::unpacker(int device) {
  const MutexLock lock(mutex_);
  if (auto unpacker = unpackers_[device].lock()) return unpacker;
  Unpacker::Limits limits{
      .grid = {.ctas = gpu_blocks_}, .bulk_bytes = all_by_kernel(gpu_blocks_), .launches = kLaunches};
  if (device < 0) limits.launches = std::max(2U, std::thread::hardware_concurrency());
  auto unpacker = Unpacker::open(device, limits);
  if (unpacker) unpackers_[device] = *unpacker;
  return unpacker;
}

}  // namespace p2p::device
