// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/staging/staged_memory.h"

#include <algorithm>

#include "base/error.h"

namespace p2p::tcp {

StagedMemory StagedMemory::of(const Batch& batch) {
  StagedMemory memory;
  batch.for_each_piece(
      [&](const Segment& piece) { memory.add(piece.local, piece.size, piece.registration->info().place); });
  return memory;
}

void StagedMemory::add(std::byte* data, std::uint64_t size, MemoryPlace place) {
  bytes += size;
  pieces.push_back(device::StagedPiece::of(data, size, place));
}

Status StagedMemory::check_size(std::uint64_t bytes) {
  if (bytes <= kStagedBytes) return {};
  return fail(ErrorCode::kUnavailable,
              "{} bytes for device memory in one batch, {} at most: lower UCCL_P2P_BATCH_BYTES", bytes,
              kStagedBytes);
}

Status begin_device_accesses(const std::vector<std::shared_ptr<Registration>>& owners,
                             std::vector<AccessGuard>& guards) {
  const std::size_t before = guards.size();
  Status usable = begin_accesses(owners, guards);
  for (std::size_t i = 0; usable && i != owners.size(); ++i) usable = owners[i]->check_alive();
  if (!usable) guards.erase(guards.begin() + static_cast<std::ptrdiff_t>(before), guards.end());
  return usable;
}

bool ends_on_device(const Batch& batch) {
  bool on_device = false;
  batch.for_each_piece([&](const Segment& piece) {
    on_device = on_device || piece.key->info().place.kind == MemoryKind::kCuda;
  });
  return on_device;
}

bool expects_to_stage(const ChannelSetup& setup) {
  const bool both_have_it = std::ranges::find(setup.transports, "cuda_ipc") != setup.transports.end();
  return !both_have_it || setup.path.local_address != setup.path.remote_address;
}

}  // namespace p2p::tcp
