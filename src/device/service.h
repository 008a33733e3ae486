// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "device/staging_pool.h"
#include "device/unpacker.h"
#include "p2p/options.h"
#include "p2p/result.h"

namespace p2p::device {

/// What the transports of an endpoint move device memory with, so that they share it. Whoever uses it keeps
/// it. Thread-safe.
class Service {
 public:
  static constexpr std::uint64_t kSlotBytes = std::uint64_t{1} << 20;  ///< of pinned memory
  static constexpr std::size_t kSlotPieces = 1024;                     ///< of what fills or empties a slot
  static constexpr std::size_t kStreamSlots = 40;                      ///< of one stream at most

  explicit Service(const Options& options);

  /// Through which all streams bring device memory to the host and back.
  const std::shared_ptr<StagingPool>& staging() const { return staging_; }

  /// That of `device` (-1: host memory), made for the first channel that asks and gone with the last one.
  Result<std::shared_ptr<Unpacker>> unpacker(int device);

 private:
  const unsigned gpu_blocks_;
  const std::shared_ptr<StagingPool> staging_;
  Mutex mutex_;
  std::map<int, std::weak_ptr<Unpacker>> unpackers_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::device
