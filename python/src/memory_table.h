// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "p2p/endpoint.h"
#include "p2p/memory.h"
#include "p2p/result.h"

namespace p2p::python {

/// The registrations of an endpoint, by the engine's region id (from 1). Any thread.
class MemoryTable {
 public:
  Result<std::uint64_t> add(Endpoint& engine, std::uint64_t address, std::size_t size,
                            const RegionOptions& options = {});

  /// Deregisters; kTimedOut leaves it registered (peers are shut out already).
  Status remove(std::uint64_t id, std::chrono::nanoseconds timeout);

  /// The descriptor of a range within a region.
  Result<RegionDescriptor> describe(std::uint64_t id, std::uint64_t address, std::size_t size) const;

  MemoryPlace place(std::uint64_t id) const;

  /// Whether each span lies in its region: kNotFound or kOutOfRange for the first that does not.
  Status check(std::span<const LocalSpan> spans) const;

  /// Cuts each span at the end of its region. Spans outside of theirs are left as they are.
  void clip(std::span<LocalSpan> spans) const;

  using Region = std::shared_ptr<MemoryRegion>;

  /// Names a region for each span, for calls that name memory by address alone: spans that touch each other
  /// are registered together, on first use, and kept. The regions whose last use is the longest ago go when
  /// there are more than kKept (or than one call needs), and one whose device memory was freed when its
  /// address is named again; blobs that describe it die with it. The caller holds what it gets for as long as
  /// its spans are to be used.
  Result<std::vector<Region>> implicit(Endpoint& engine, std::span<LocalSpan> spans);
  static constexpr std::size_t kKept = 4096;

  void clear();

 private:
  struct Range {
    std::uint64_t address;
    std::size_t size;
    auto operator<=>(const Range&) const = default;
  };
  struct Implicit {
    std::uint64_t id;
    std::list<Range>::iterator used;  ///< in implicit_order_
  };

  Result<Region> find(std::uint64_t id) const;

  /// Names the known region of each span that has one, and gives the others.
  std::vector<LocalSpan*> name_known(std::span<LocalSpan> spans, std::vector<Region>& held);

  /// The known region around a span, taken for used now. Called with the lock; what is `stale` is for the
  /// caller to drop without it, because that may wait.
  Region known(const LocalSpan& span, std::vector<Region>& stale);

  /// Of spans in the order of their addresses, those from the first one on that touch or overlap.
  struct Run {
    Range range;
    std::size_t spans;
  };
  static Run first_run(std::span<LocalSpan* const> spans);

  /// Registers a range for `implicit` and keeps `most` of those.
  Result<Region> add_implicit(Endpoint& engine, const Range& range, std::size_t most);

  /// Takes it out of the tables. Called with the lock.
  Region take_implicit(const Range& range);

  /// The bytes from the span's start to its region's end; none outside of it. Called with the lock.
  Result<std::size_t> room(const LocalSpan& span) const;

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, Region> regions_;
  std::map<Range, Implicit> implicit_;
  std::list<Range> implicit_order_;  ///< used longest ago first
};

}  // namespace p2p::python
