// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "drivers/cuda/stream.h"
#include "softnet/pool.h"

namespace softnet {

/// Brings device memory that is to be sent into the pool of sends, on a stream of its own. One comm's; at
/// most as many at once as a comm has requests.
class Stager {
 public:
  /// For the device that is current; null, with a warning, if that is impossible.
  static std::unique_ptr<Stager> open();

  enum class Progress { kNoRoom, kStarted, kFailed };

  /// Starts to copy into `extent`, which it takes from the pool.
  Progress start(std::size_t slot, const std::byte* data, std::size_t size, Pool::Extent& extent);

  enum class Copied { kYes, kNotYet, kFailed };
  Copied copied(std::size_t slot) const;

  static std::byte* at(Pool::Extent extent) { return Pool::of_sends()->base() + extent.offset; }

  /// Waits until nothing is copied any more.
  ~Stager();

 private:
  int device_ = -1;
  p2p::cuda::Stream stream_;
  std::array<p2p::cuda::Event, 16> events_;
};

}  // namespace softnet
