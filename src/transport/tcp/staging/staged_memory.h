// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/staging.h"
#include "transport/batch.h"
#include "transport/registration.h"
#include "transport/tcp/stream/frame.h"
#include "transport/transport.h"

namespace p2p::tcp {

/// Memory of a batch or of a peer's ranges, device memory among it, in order; it goes through a slot of the
/// stream's staging.
struct StagedMemory {
  std::vector<device::StagedPiece> pieces;
  std::vector<std::shared_ptr<Registration>> owners;  ///< of what a peer named
  std::uint64_t bytes = 0;

  /// The local memory of `batch`.
  static StagedMemory of(const Batch& batch);

  void add(std::byte* data, std::uint64_t size, MemoryPlace place);

  /// kUnavailable for more bytes than a slot has.
  static Status check_size(std::uint64_t bytes);
};

/// Appends guards for what a peer named and a device is about to touch. kNotFound, and none appended: one of
/// them was deregistered, or its memory freed.
Status begin_device_accesses(const std::vector<std::shared_ptr<Registration>>& owners,
                             std::vector<AccessGuard>& guards);

/// True if the batch's remote memory is on a device.
bool ends_on_device(const Batch& batch);

/// False if device memory will hardly take this stream: between GPUs of one host cuda_ipc serves, where both
/// sides have it. To pin slots would hold up each of its calls of the driver by a millisecond, for the first
/// tenth of a second.
bool expects_to_stage(const ChannelSetup& setup);

/// What one stream has of the endpoint's staging. Short runs go by the kernel that stands by as far as one
/// stream carries them alone: where streams share a transfer, orders cost so little that the first of them
/// take all of it before the others' threads are there; 1 MiB took 350 us in place of 280.
inline constexpr device::Staging::Share kStagingShare{.slots = {16, kMaxStagedWrites, 8},
                                                      .standby_bytes = std::uint64_t{64} << 10};

}  // namespace p2p::tcp
