// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "drivers/cuda/memory.h"
#include "drivers/cuda/stream.h"
#include "kernels/copy.h"
#include "kernels/standby.h"
#include "p2p/result.h"

namespace p2p::device {

/// Short copies one after the other without a call of the driver for each: while they follow one another
/// within `Limits::idle`, a kernel of few thread blocks runs and takes orders from pinned memory. It is
/// renewed every `kLife`, so that whoever synchronises the device waits no longer, and ends by itself when no
/// order comes for twice that time. Thread-safe: orders of all threads are carried out one after the other.
class Standby {
 public:
  using Clock = std::chrono::steady_clock;
  using Number = std::uint32_t;

  static constexpr std::chrono::microseconds kLife{1000};

  struct Limits {
    unsigned ctas = 0;  ///< thread blocks of 512
    std::chrono::microseconds idle{200};
  };

  /// Longer copies are at their end sooner by copy engine on any GPU.
  static constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 20;

  static Result<std::unique_ptr<Standby>> open(int device, const Limits& limits);

  /// Ends the kernel and waits for that, for a few seconds at most.
  ~Standby();

  /// Starts the copy, whose ends the device reaches. None while no kernel runs, which is so at first, or when
  /// as many orders are under way as there are places: the copy is to go another way then. Each order is to
  /// be asked about until it is finished or lost.
  std::optional<Number> order(const kernels::CopyBlock& block, Clock::time_point now = Clock::now());

  /// True once, and then not to be asked again.
  bool finished(Number number);

  /// True, as the last answer, if an order that is not finished will not be either: the kernel has ended. The
  /// error if it failed.
  Result<bool> lost(Number number);

  /// Starts the kernel and ends it at once, because CUDA puts off work of its own to the first start.
  void rehearse();

  /// Ends the kernel.
  void dismiss();

  bool running() const;

 private:
  Standby(int device, const Limits& limits) : device_(device), limits_(limits) {}
  bool launch(Clock::time_point now) P2P_REQUIRES(mutex_);
  Number last_done();
  bool is_done(Number number);
  void note_done() P2P_REQUIRES(mutex_);
  Number put(const kernels::CopyBlock& block) P2P_REQUIRES(mutex_);
  void stop() P2P_REQUIRES(mutex_);

  const int device_;
  const Limits limits_;
  cuda::HostBuffer board_;      // the orders, then the word that tells what is done
  cuda::DeviceBuffer scratch_;  // what its thread blocks tell each other
  cuda::Stream stream_;
  mutable Mutex mutex_;
  bool running_ P2P_GUARDED_BY(mutex_) = false;
  bool broken_ P2P_GUARDED_BY(mutex_) = false;
  Clock::time_point launched_ P2P_GUARDED_BY(mutex_);
  Clock::time_point asked_ P2P_GUARDED_BY(mutex_);
  Number next_ P2P_GUARDED_BY(mutex_) = 1;
  Number oldest_ P2P_GUARDED_BY(mutex_) = 1;  // all before it are finished
  Number hello_ P2P_GUARDED_BY(mutex_) = 0;   // done once the kernel runs
  // Orders of which nobody knows yet whether they were carried out.
  std::size_t under_way_ P2P_GUARDED_BY(mutex_) = 0;
};

}  // namespace p2p::device
