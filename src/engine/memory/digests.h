// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "base/mutex.h"
#include "engine/memory/region.h"
#include "p2p/digest.h"
#include "p2p/memory.h"

namespace p2p::device {
class Digester;
}
namespace p2p {
class Background;
}

namespace p2p::engine {

/// Bytes of host memory of which a digest takes less than to hand them to another thread.
inline constexpr std::uint64_t kDigestedAtOnce = std::uint64_t{64} << 10;

/// Threads of an endpoint that compute digests, and how long each waits for the next.
std::size_t digest_threads();
inline constexpr std::chrono::milliseconds kDigestLinger{200};

/// Digests of an endpoint's memory, and what computes them on its GPUs. Thread-safe.
class Digests {
 public:
  /// Bytes of this process, on a GPU or not.
  struct Range {
    std::span<const std::byte> bytes;
    MemoryPlace place;
  };

  /// See Endpoint::digest.
  Result<Digest> start(const RegionTable& regions, std::span<const LocalSpan> spans);

  /// That of ranges as if they lay in a row, by this thread, which waits for GPUs. Whoever calls has looked
  /// that memory of GPUs is alive and holds it. Idle threads of `others` take shares of host memory. kSystem
  /// for host memory that has become bad.
  Result<std::uint64_t> compute(std::span<const Range> ranges, Background* others = nullptr);

 private:
  std::shared_ptr<device::Digester> digester(int device);

  Mutex mutex_;
  std::map<int, std::shared_ptr<device::Digester>> by_device_ P2P_GUARDED_BY(mutex_);
};

/// Their digest holds up no thread for long: host memory, of at most kDigestedAtOnce.
bool digested_at_once(std::span<const Digests::Range> ranges);

}  // namespace p2p::engine
