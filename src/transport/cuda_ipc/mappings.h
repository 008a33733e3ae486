// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>

#include "base/mutex.h"
#include "drivers/cuda/ipc.h"
#include "p2p/result.h"
#include "transport/cuda_ipc/key.h"

namespace p2p::cuda_ipc {

/// Peers' allocations as mapped into this process. Opening takes a millisecond, so those that nobody uses any
/// more are kept, within limits, because they keep the peer's memory alive too. Thread-safe.
class Mappings {
 public:
  /// Unused mappings kept open, by number and bytes; the oldest go first.
  struct Limits {
    std::size_t count = 16;
    std::uint64_t bytes = std::uint64_t{1} << 30;
  };
  using Open = std::function<Result<cuda::IpcMapping>(const cuda::IpcHandle& handle, int device)>;

  explicit Mappings(Limits limits, Open open = cuda::IpcMapping::open)
      : limits_(limits), open_(std::move(open)) {}

  /// The mapping for use by `device`, opened or from before. One of an allocation that has since been freed
  /// and replaced by its owner is never returned for the new one.
  Result<std::shared_ptr<const cuda::IpcMapping>> get(const SharedMemory& memory, int device);

  /// Mappings open now, used or not.
  std::size_t open_count() const;

 private:
  struct Entry {
    SharedMemory memory;
    int device;
    std::shared_ptr<const cuda::IpcMapping> mapping;
  };
  using Entries = std::list<Entry>;

  Entries take_unwanted(const SharedMemory& memory) P2P_REQUIRES(mutex_);

  const Limits limits_;
  const Open open_;
  mutable Mutex mutex_;
  Entries entries_ P2P_GUARDED_BY(mutex_);  // least recently asked for first
};

}  // namespace p2p::cuda_ipc
