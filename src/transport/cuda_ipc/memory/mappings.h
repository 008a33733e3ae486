// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "base/background.h"
#include "base/mutex.h"
#include "drivers/cuda/ipc.h"
#include "drivers/cuda/window.h"
#include "p2p/result.h"
#include "transport/cuda_ipc/memory/key.h"

namespace p2p::cuda_ipc {

/// A peer's allocation in this process.
struct MappedMemory {
  std::shared_ptr<const cuda::IpcMapping> mapping;  ///< keeps it; to be let go before the Mappings
  std::byte* data = nullptr;                        ///< where the allocation begins
};

/// Peers' allocations as mapped into this process. Opening takes a millisecond, so those that nobody uses any
/// more are kept, within limits, because they keep the peer's memory alive too. Small allocations of one
/// block share a mapping. What is known is found without waiting for another that is being opened or closed.
/// Thread-safe.
class Mappings {
 public:
  /// Unused mappings kept open, by number and bytes; the oldest go first.
  struct Limits {
    std::size_t count = 16;
    std::uint64_t bytes = std::uint64_t{1} << 30;
  };
  using Open = std::function<Result<cuda::IpcMapping>(const cuda::IpcHandle& handle, int device)>;

  /// True if all of the range belongs to what is mapped at `mapped`. Both may be a peer's inventions.
  using Covers = std::function<bool(const std::byte* mapped, const std::byte* data, std::uint64_t size)>;
  static bool driver_covers(const std::byte* mapped, const std::byte* data, std::uint64_t size);

  explicit Mappings(Limits limits, Open open = cuda::IpcMapping::open, Covers covers = driver_covers)
      : limits_(limits), open_(std::move(open)), covers_(std::move(covers)) {}

  /// The memory for use by `device`, mapped now or from before, if need be together with a neighbour. A
  /// mapping of an allocation that has since been freed and replaced by its owner is never returned for the
  /// new one. kProtocol if less is mapped than `memory` says.
  Result<MappedMemory> get(const SharedMemory& memory, const std::vector<AllocationId>& neighbours,
                           int device);

  /// Takes back what `get` returned for memory that its owner wants free: if nobody else uses the mapping, it
  /// is closed as soon as a thread gets to it.
  void close(std::shared_ptr<const cuda::IpcMapping> mapping);

  /// Lets go of a window of chunks, which takes 20 us for each: not on the caller's thread.
  void close(std::shared_ptr<const cuda::Window> window);

  /// Mappings open now, used or not.
  std::size_t open_count() const;

 private:
  struct Entry {
    SharedMemory memory;  // that was opened
    int device;
    std::vector<SharedMemory> others;  // in its block, reached through it
    std::shared_ptr<const cuda::IpcMapping> mapping;
    bool replaced = false;  // by its owner: for those who have it already
  };
  using Entries = std::list<Entry>;

  MappedMemory known(const SharedMemory& memory, const std::vector<AllocationId>& neighbours, int device)
      P2P_REQUIRES(mutex_);
  MappedMemory lend(const Entry& entry, std::byte* data);
  void give_back();
  void sort_out(const SharedMemory* wanted) P2P_REQUIRES(mutex_);
  void close_soon();
  void close_unwanted();

  const Limits limits_;
  const Open open_;
  const Covers covers_;
  Mutex changing_;  // held to open and to close, and taken before the other
  mutable Mutex mutex_;
  Entries entries_ P2P_GUARDED_BY(mutex_);   // least recently asked for first
  Entries unwanted_ P2P_GUARDED_BY(mutex_);  // to be closed
  Background closing_{"p2p-unmapping"};
};

}  // namespace p2p::cuda_ipc
