// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "device/copiers.h"
#include "device/thresholds.h"
#include "drivers/cuda/memory.h"
#include "p2p/options.h"
#include "transport/cuda_ipc/key.h"
#include "transport/cuda_ipc/mappings.h"
#include "transport/cuda_ipc/regions.h"

namespace p2p::cuda_ipc {

/// What CUDA does at the first use of something, done before a transfer needs it: copiers made for all
/// channels, and copies from a peer's region and to memory that the peer keeps for this. Knows from that
/// which way of copying is the quicker between two devices. Thread-safe.
class Warmup {
 public:
  Warmup(const device::Copier::Limits& limits, const Options& options, std::shared_ptr<Mappings> mappings);

  device::Copiers& copiers() { return copiers_; }
  Mappings& mappings() { return *mappings_; }

  /// A channel of this process has come, or gone.
  void add_channel() { ++channels_; }
  void remove_channel() { --channels_; }

  /// `memory` of `owner` may be written to at any time; nobody reads it.
  void note_probe(const ProcessId& owner, const SharedMemory& memory);

  /// `device` will copy for channels.
  void prepare(int device);

  /// `region` can be used by `device`, and will be.
  void prepare(int device, const PeerMemory& region);

  /// Finds out which way of copying from `region` to `device` is the quicker, unless it is known or settled
  /// by the options.
  void measure(int device, const PeerMemory& region);

  /// Which way pieces go between memory of `device` and of `peer`, as measured or as the options say.
  device::Ways ways(int device, int peer) const;

  /// The same between host memory and a device, which is not measured.
  const device::Ways& host_ways() const { return defaults_; }

 private:
  bool reserve(int device);
  std::optional<SharedMemory> probe_of(const ProcessId& owner) const;
  Result<device::Timings> try_ways(int device, const std::byte* source, std::uint64_t bytes,
                                   const std::shared_ptr<const void>& kept);
  device::Ways chosen(const device::Timings& timings) const;

  const device::Ways defaults_;
  const bool measured_bulk_;
  const bool measured_standby_;

  /// A copier whose copies did not end, and what they read.
  struct Stuck {
    std::shared_ptr<const void> source;
    std::unique_ptr<device::Copier> copier;
  };

  std::map<int, cuda::DeviceBuffer> sinks_;  // by whoever measures; outlive the copies
  mutable Mutex mutex_;
  // By device, what rehearsals may still read; goes once no copy is under way there.
  std::map<int, std::vector<std::shared_ptr<const void>>> late_ P2P_GUARDED_BY(mutex_);
  device::Copiers copiers_;
  const std::shared_ptr<Mappings> mappings_;
  std::atomic<std::size_t> channels_{0};
  std::map<ProcessId, SharedMemory> probes_ P2P_GUARDED_BY(mutex_);
  std::map<std::pair<int, int>, device::Ways> ways_ P2P_GUARDED_BY(mutex_);
  std::vector<Stuck> stuck_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::cuda_ipc
