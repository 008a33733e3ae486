// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "drivers/cuda/memory.h"
#include "drivers/cuda/stream.h"
#include "kernels/copy.h"
#include "kernels/standby.h"
#include "p2p/result.h"

namespace p2p::device {

/// Short copies one after the other without a call of the driver for each: while they follow one another
/// within `kIdle`, a kernel of few thread blocks runs and takes orders from pinned memory. It is renewed
/// every `kLife`, so that whoever synchronises the device waits no longer. Used by one thread at a time.
class Standby {
 public:
  using Clock = std::chrono::steady_clock;
  using Number = std::uint32_t;

  static constexpr std::chrono::microseconds kIdle{200};
  static constexpr std::chrono::microseconds kLife{1000};

  /// Longer copies are at their end sooner by copy engine on any GPU.
  static constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 20;

  static Result<std::unique_ptr<Standby>> open(int device, unsigned ctas);

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
  void dismiss() {
    if (running_) stop();
  }

  /// Ends the kernel if it has had nothing to do for long. To be called now and then.
  void rest();

  bool running() const { return running_; }

 private:
  Standby(int device, unsigned ctas) : device_(device), ctas_(ctas) {}
  bool launch(Clock::time_point now);
  bool done(Number number);
  Number put(const kernels::CopyBlock& block);
  void stop();

  const int device_;
  const unsigned ctas_;
  cuda::HostBuffer board_;      // the orders, then the word that tells what is done
  cuda::DeviceBuffer scratch_;  // what its thread blocks tell each other
  cuda::Stream stream_;
  bool running_ = false;
  bool broken_ = false;
  Clock::time_point launched_;
  Clock::time_point asked_;
  Number next_ = 1;
  Number oldest_ = 1;          // all before it are finished
  Number hello_ = 0;           // done once the kernel runs
  std::size_t under_way_ = 0;  // orders of which nobody knows yet whether they were carried out
};

}  // namespace p2p::device
