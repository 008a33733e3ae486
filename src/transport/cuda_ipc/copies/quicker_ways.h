// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/background.h"
#include "base/mutex.h"
#include "device/copiers.h"
#include "device/thresholds.h"
#include "drivers/cuda/memory.h"
#include "p2p/options.h"
#include "transport/cuda_ipc/copies/late_copies.h"
#include "transport/cuda_ipc/memory/regions.h"
#include "transport/transport.h"

namespace p2p::cuda_ipc {

/// Which way of copying is the quicker between two devices. That is measured in the background, in moments in
/// which no channel copies; until then, and where the options say so, fixed sizes serve. Thread-safe.
class QuickerWays {
 public:
  QuickerWays(const Options& options, device::Copiers& copiers);
  ~QuickerWays();
  QuickerWays(const QuickerWays&) = delete;
  QuickerWays& operator=(const QuickerWays&) = delete;

  /// Channels have begun to copy, and are through.
  void note_begun() { begun_.fetch_add(1, std::memory_order_relaxed); }
  void note_ended(std::size_t count) { ended_.fetch_add(count, std::memory_order_relaxed); }

  /// No channel copies now.
  bool quiet() const {
    return ended_.load(std::memory_order_relaxed) == begun_.load(std::memory_order_relaxed);
  }

  /// Measures copies from `region` to `device` some time, unless that is known or settled by the options.
  /// `region` is used while `lend` lends it.
  void find_out(int device, const PeerMemory& region, Lend lend);

  /// Between memory of `device` and of `peer`, as known now.
  device::Ways between(int device, int peer) const;

  /// Between host memory and a device, which is not measured.
  const device::Ways& with_host() const { return defaults_; }

 private:
  enum class Outcome : std::uint8_t { kKnown, kDisturbed };

  void wait_and_measure(int device, const PeerMemory& region, const Lend& lend);
  bool wait_for_quiet(std::uint64_t& seen);
  Outcome measure(int device, const PeerMemory& region, std::uint64_t seen);
  Result<device::Timings> try_ways(int device, const std::byte* source, std::uint64_t bytes,
                                   const std::shared_ptr<const void>& kept, std::uint64_t seen);
  void settle(const std::pair<int, int>& devices, const device::Timings& timings);

  const device::Ways defaults_;
  const bool measures_bulk_;
  const bool measures_standby_;
  device::Copiers& copiers_;
  std::atomic<std::uint64_t> begun_{0};
  std::atomic<std::uint64_t> ended_{0};
  std::map<int, cuda::DeviceBuffer> sinks_;  // by the thread that measures; outlive the copies
  mutable Mutex mutex_;
  std::condition_variable_any stopped_;
  bool stop_ P2P_GUARDED_BY(mutex_) = false;
  std::map<std::pair<int, int>, device::Ways> ways_ P2P_GUARDED_BY(mutex_);
  LateCopies late_;
  Background measuring_{"p2p-measuring"};
};

}  // namespace p2p::cuda_ipc
