// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "device/job.h"
#include "softnet/pool.h"
#include "softnet/settings.h"

namespace softnet {

/// Brings device memory that is to be sent into the pool of sends, by copy engine: a plugin brings no
/// kernels. Host memory, if the settings want that, is copied on the spot. One comm's; its end waits until
/// nothing is copied any more.
class Stager {
 public:
  static constexpr std::size_t kSlots = 16;  ///< copies at once, one for each request of a comm

  static bool wanted() { return settings().cuda || settings().stage; }

  /// For the device that is current; null, with a warning, if that is impossible.
  static std::unique_ptr<Stager> open();

  /// Starts to copy into `extent`, which it takes from the pool. False: there is no room.
  bool start(std::size_t slot, const std::byte* data, std::size_t size, Pool::Extent& extent);

  enum class Copied { kYes, kNotYet, kFailed };
  Copied copied(std::size_t slot);

  static std::byte* at(Pool::Extent extent) { return Pool::of_sends()->base() + extent.offset; }

 private:
  std::unique_ptr<p2p::device::Copier> copier_;  // null: host memory alone
  std::array<p2p::device::Job, kSlots> jobs_;
};

}  // namespace softnet
