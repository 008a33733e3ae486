// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "device/copiers.h"
#include "transport/cuda_ipc/key.h"
#include "transport/cuda_ipc/mappings.h"
#include "transport/cuda_ipc/regions.h"

namespace p2p::cuda_ipc {

/// What CUDA does at the first use of something, done before a transfer needs it: copiers made for all
/// channels, and copies from a peer's region and to memory that the peer keeps for this. Thread-safe.
class Firsts {
 public:
  Firsts(const device::Copier::Limits& limits, std::shared_ptr<Mappings> mappings)
      : copiers_(limits), mappings_(std::move(mappings)) {}

  device::Copiers& copiers() { return copiers_; }
  Mappings& mappings() { return *mappings_; }

  /// A channel of this process has come, or gone.
  void add_channel() { ++channels_; }
  void remove_channel() { --channels_; }

  /// `memory` of `owner` may be written to at any time; nobody reads it.
  void note_probe(const ProcessId& owner, const SharedMemory& memory);

  /// `region` can be used by `device`, and will be.
  void prepare(int device, const PeerMemory& region);

 private:
  std::optional<SharedMemory> probe_of(const ProcessId& owner) const;

  device::Copiers copiers_;
  const std::shared_ptr<Mappings> mappings_;
  std::atomic<std::size_t> channels_{0};
  mutable Mutex mutex_;
  std::map<ProcessId, SharedMemory> probes_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::cuda_ipc
