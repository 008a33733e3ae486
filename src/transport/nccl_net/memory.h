// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/lifetime.h"
#include "drivers/cuda/memory.h"
#include "drivers/nccl_net/registration_cache.h"
#include "kernels/copy.h"
#include "transport/nccl_net/protocol.h"
#include "transport/registration.h"

namespace p2p::nccl_net {

/// Comms belong to one worker, so memory is registered with each by its worker, at first use. The region
/// itself only tells whether it still lives.
class NetRegistration : public device::WithLifetime<Registration> {
 public:
  using WithLifetime::WithLifetime;
  std::weak_ptr<const void> life() const { return life_; }

 private:
  std::shared_ptr<const int> life_ = std::make_shared<const int>(0);
};

/// What moves through a channel: how its memory is registered, where it lies, how much of it at once.
struct Flow {
  abi::PointerType pointer = abi::kPointerHost;
  int device = -1;  ///< CUDA device whose comms the channel has; -1: host memory
  std::size_t chunk_bytes = NcclNetOptions::kHostChunkBytes;  ///< of one message of a comm at most
  unsigned window = NcclNetOptions::kMostWindow;              ///< requests under way on a comm
  unsigned gpu_blocks = 64;                                   ///< see Options
};

/// The registrations of one comm, of regions that live. One worker.
class HandleCache {
 public:
  HandleCache(std::shared_ptr<Comm> comm, const Flow& flow) : handles_(std::move(comm)), flow_(flow) {}

  /// Null if the plugin does not take this memory, or not here because it lies on another device: then it
  /// goes through the staging.
  const MemoryHandle* find(const Registration& registration);

  /// Deregisters regions that are gone.
  void sweep();

 private:
  struct Entry {
    std::weak_ptr<const void> life;
    bool refused = false;  ///< by the plugin
  };
  RegistrationCache handles_;
  Flow flow_;
  std::map<RegionId, Entry> entries_;
};

/// Memory of the channel's own for one comm: a slot of a chunk for each request. Host pages that are never
/// used take no memory. What the processor copies there should still be in its cache when it is copied on: so
/// the slot that was given back last is the next, and of the host's few bytes are in slots at once.
class SlotMemory {
 public:
  static Result<SlotMemory> open(const std::shared_ptr<Comm>& comm, const Flow& flow);

  /// Null: none is free now, or more bytes than these may not be on their way.
  std::byte* take(std::size_t bytes);
  void give_back(std::byte* slot, std::size_t bytes);
  const MemoryHandle& handle() const { return *handle_; }

 private:
  struct Unmap {
    std::size_t bytes = 0;
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Unmap> mapped_{nullptr, {}};  // either outlives its registration
  cuda::DeviceBuffer device_;
  std::vector<std::byte*> free_;
  std::size_t taken_bytes_ = 0;
  std::size_t most_bytes_ = 0;
  std::optional<MemoryHandle> handle_;
};

/// A run of local memory.
struct LocalRange {
  std::byte* data = nullptr;
  std::uint64_t size = 0;
  const Registration* registration = nullptr;
  bool peers = false;  ///< a peer reads or writes it: to be touched while an AccessGuard is held alone
};

/// Where a message's bytes lie. Thousands of pieces mostly lie in one region, and channels of many threads in
/// the same: so it is held once, not piece by piece.
struct Places {
  std::vector<LocalRange> pieces;
  std::vector<std::shared_ptr<Registration>> owners;  ///< of the peers' pieces, in their order
};

/// kNotFound if memory of one of them was freed since it was registered.
Status check_alive(const std::vector<LocalRange>& pieces);

/// kSystem if memory of the host has turned bad.
Status check_readable(const std::vector<LocalRange>& pieces);

/// Copies on the host to where `copies` say, and back to back from the pieces. kSystem if memory of the
/// program's has turned bad.
Status land_on_host(std::span<const kernels::CopyBlock> copies);
Status gather_on_host(const std::vector<LocalRange>& pieces, std::byte* out);

/// True for one run of one region, cut into pieces or not.
bool contiguous(const std::vector<LocalRange>& pieces);

}  // namespace p2p::nccl_net
