// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>

#include "base/mutex.h"
#include "device/unpacker.h"
#include "p2p/options.h"
#include "p2p/result.h"

namespace p2p::device {

/// What the transports of an endpoint move device memory with, so that they share it. Whoever uses it keeps
/// it. Thread-safe.
class Service {
 public:
  explicit Service(const Options& options) : gpu_blocks_(options.gpu_blocks) {}

  /// That of `device` (-1: host memory), made for the first channel that asks and gone with the last one.
  Result<std::shared_ptr<Unpacker>> unpacker(int device);

 private:
  const unsigned gpu_blocks_;
  Mutex mutex_;
  std::map<int, std::weak_ptr<Unpacker>> unpackers_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::device
