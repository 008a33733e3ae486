// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "p2p/memory.h"
#include "p2p/result.h"

namespace p2p::engine {

/// Regions for memory that is named by address alone: made on first use and kept. Thread-safe.
class ImplicitRegions {
 public:
  using Kept = std::shared_ptr<MemoryRegion>;
  using Register = std::function<Result<MemoryRegion>(std::byte* data, std::size_t size)>;
  static constexpr std::size_t kKept = 4096;

  explicit ImplicitRegions(Register make) : make_(std::move(make)) {}

  /// See p2p::Endpoint::cover.
  Result<std::vector<Kept>> cover(std::span<LocalSpan> spans);

  /// Lets go of all.
  void clear();

 private:
  struct Range {
    std::uint64_t address;
    std::size_t size;
    auto operator<=>(const Range&) const = default;
  };
  struct Entry {
    Kept region;
    std::list<Range>::iterator used;  ///< in order_
  };

  /// Names the known region of each span that has one, and gives the others.
  std::vector<LocalSpan*> name_known(std::span<LocalSpan> spans, std::vector<Kept>& held);

  /// The known region around a span, taken for used now. What is `stale` is for the caller to drop without
  /// the lock, because that may wait.
  Kept known(const LocalSpan& span, std::vector<Kept>& stale) P2P_REQUIRES(mutex_);

  /// Of spans in the order of their addresses, those from the first one on that touch or overlap.
  struct Run {
    Range range;
    std::size_t spans;
  };
  static Run first_run(std::span<LocalSpan* const> spans);

  /// Registers a range and keeps `most` of them.
  Result<Kept> add(const Range& range, std::size_t most);

  Kept take(const Range& range) P2P_REQUIRES(mutex_);

  const Register make_;
  Mutex mutex_;
  std::map<Range, Entry> regions_ P2P_GUARDED_BY(mutex_);
  std::list<Range> order_ P2P_GUARDED_BY(mutex_);  // used longest ago first
};

}  // namespace p2p::engine
