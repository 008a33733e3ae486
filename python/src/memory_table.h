// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>

#include "p2p/endpoint.h"
#include "p2p/memory.h"
#include "p2p/result.h"

namespace p2p::python {

/// The registrations of an endpoint, by the engine's region id (from 1). Any thread.
class MemoryTable {
 public:
  Result<std::uint64_t> add(Endpoint& engine, std::uint64_t address, std::size_t size,
                            const RegionOptions& options = {});

  /// Deregisters. Unknown meanwhile; kTimedOut leaves it registered (peers are shut out already).
  Status remove(std::uint64_t id, std::chrono::nanoseconds timeout);

  /// The descriptor of a range within a region.
  Result<RegionDescriptor> describe(std::uint64_t id, std::uint64_t address, std::size_t size) const;

  MemoryPlace place(std::uint64_t id) const;

  /// Whether each span lies in its region: kNotFound or kOutOfRange for the first that does not.
  Status check(std::span<const LocalSpan> spans) const;

  /// Cuts each span at the end of its region. Spans outside of theirs are left as they are.
  void clip(std::span<LocalSpan> spans) const;

  void clear();

 private:
  /// The bytes from the span's start to its region's end; none outside of it. Called with the lock.
  Result<std::size_t> room(const LocalSpan& span) const;

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, MemoryRegion> regions_;
};

/// The descriptor of a range; kOutOfRange unless it lies within the region.
Result<RegionDescriptor> describe(const MemoryRegion& region, std::uint64_t address, std::size_t size);

}  // namespace p2p::python
