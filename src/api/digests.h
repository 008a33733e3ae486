// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <span>

#include "base/mutex.h"
#include "device/digester.h"
#include "engine/memory/region.h"
#include "p2p/digest.h"
#include "p2p/memory.h"

namespace p2p {

/// Digests of an endpoint's memory, and what computes them on its GPUs. Thread-safe.
class Digests {
 public:
  /// See Endpoint::digest.
  Result<Digest> start(const engine::RegionTable& regions, std::span<const LocalSpan> spans);

 private:
  std::shared_ptr<device::Digester> digester(int device);

  Mutex mutex_;
  std::map<int, std::shared_ptr<device::Digester>> by_device_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p
