// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "drivers/cuda/memory.h"
#include "drivers/cuda/stream.h"
#include "softnet/pool.h"
#include "softnet/settings.h"

namespace softnet {

/// Brings device memory that is to be sent into the pool of sends, on a stream of its own that writes a word
/// when a copy is done: many comms that asked the driver all the time would hold each other up. Host memory,
/// if the settings want that, is copied on the spot. One comm's.
class Stager {
 public:
  static constexpr std::size_t kSlots = 16;  ///< copies at once, one for each request of a comm

  static bool wanted() { return settings().cuda || settings().stage; }

  /// For the device that is current; null, with a warning, if that is impossible.
  static std::unique_ptr<Stager> open();

  enum class Progress { kNoRoom, kStarted, kFailed };

  /// Starts to copy into `extent`, which it takes from the pool.
  Progress start(std::size_t slot, const std::byte* data, std::size_t size, Pool::Extent& extent);

  enum class Copied { kYes, kNotYet, kFailed };
  Copied copied(std::size_t slot);

  static std::byte* at(Pool::Extent extent) { return Pool::of_sends()->base() + extent.offset; }

  /// Waits until nothing is copied any more.
  ~Stager();

 private:
  using Clock = std::chrono::steady_clock;

  std::uint32_t* word_of(std::size_t slot) const;

  int device_ = -1;              // -1: host memory alone
  p2p::cuda::HostBuffer words_;  // outlives the stream's work
  p2p::cuda::Stream stream_;
  std::array<std::uint32_t, kSlots> turns_{};  // what a slot's word will be
  std::array<Clock::time_point, kSlots> asked_{};
};

}  // namespace softnet
