// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/background.h"
#include "base/mutex.h"
#include "device/copiers.h"
#include "p2p/options.h"
#include "transport/cuda_ipc/copies/late_copies.h"
#include "transport/cuda_ipc/memory/key.h"
#include "transport/cuda_ipc/memory/mappings.h"
#include "transport/cuda_ipc/memory/open_links.h"
#include "transport/cuda_ipc/memory/regions.h"

namespace p2p::cuda_ipc {

/// Two threads write lists as fast as a kernel works off the shortest blocks.
inline constexpr unsigned kChannels = 2;

/// What CUDA does at the first use of something, done before a transfer needs it: copiers made for all
/// channels, and copies from a peer's region and to memory that the peer keeps for this. Thread-safe.
class Warmup {
 public:
  Warmup(const device::Copier::Limits& limits, const Options& options, std::shared_ptr<Mappings> mappings);

  device::Copiers& copiers() { return copiers_; }
  Mappings& mappings() { return *mappings_; }

  /// A channel of this process has come, or gone.
  void add_channel() { ++channels_; }
  void remove_channel() { --channels_; }

  /// `memory` of `owner` may be written to at any time, and nobody reads it: what copies are tried on. It is
  /// mapped when a region of the owner's has been, since what a process maps first from another takes
  /// milliseconds.
  void note_probe(const ProcessId& owner, const SharedMemory& memory);

  /// `device` may have to copy for channels that there will be: copiers are made, and the ways to other GPUs
  /// opened, in the background.
  void expect(int device);

  /// `device` will copy for channels.
  void prepare(int device);

  /// `region` can be used by `device`, and will be.
  void prepare(int device, const PeerMemory& region);

  /// Which copies between GPUs, and between a GPU and the host, go by which way.
  const device::Ways& ways() const { return ways_; }

  /// Channels have begun to copy, and are through.
  void note_begun() { begun_.fetch_add(1, std::memory_order_relaxed); }
  void note_ended(std::size_t count) { ended_.fetch_add(count, std::memory_order_relaxed); }

 private:
  /// No channel copies now.
  bool quiet() const {
    return ended_.load(std::memory_order_relaxed) == begun_.load(std::memory_order_relaxed);
  }
  bool reserve(int device, std::size_t count);
  std::optional<SharedMemory> probe_of(const ProcessId& owner) const;

  mutable Mutex mutex_;
  LateCopies late_;  // of rehearsals
  device::Copiers copiers_;
  const std::shared_ptr<Mappings> mappings_;
  std::atomic<std::size_t> channels_{0};
  std::map<ProcessId, SharedMemory> probes_ P2P_GUARDED_BY(mutex_);
  const device::Ways ways_;
  std::atomic<std::uint64_t> begun_{0};
  std::atomic<std::uint64_t> ended_{0};
  OpenLinks links_;
  Background ahead_{"p2p-warmup"};  // ends before what its tasks use
};

}  // namespace p2p::cuda_ipc
