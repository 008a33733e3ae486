// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/memory/region.h"
#include "engine/memory/remote_region.h"
#include "engine/request/strided.h"
#include "p2p/memory.h"
#include "transport/batch.h"

namespace p2p::engine {

/// Bytes that a transport moved of a transfer.
struct TransportShare {
  std::size_t transport = 0;
  std::uint64_t bytes = 0;
};

/// A checked and merged list of segments, one portion for each transport that carries some of it.
/// Immutable once built; keeps its regions. Shared by all posts of it.
struct SegmentList {
  struct Portion {
    std::size_t transport = 0;
    std::vector<Segment> segments;
    std::uint64_t bytes = 0;
  };

  Operation operation = Operation::kWrite;
  std::uint64_t bytes = 0;
  std::vector<Portion> portions;
  std::deque<Repeats> repeats;  ///< that segments point to
  std::vector<std::shared_ptr<Region>> locals;
  std::vector<std::shared_ptr<RemoteRegion>> remotes;

  std::size_t segments() const {
    std::size_t sum = 0;
    for (const Portion& portion : portions) sum += portion.segments.size();
    return sum;
  }

  /// A post uses the regions between the two. Fails if the peer has taken one back.
  Status enter() const;
  void leave() const;
};

/// What building a list asks of its connection.
struct ListContext {
  std::function<std::shared_ptr<Region>(RegionId)> local;
  std::function<std::shared_ptr<RemoteRegion>(RemoteRegionId)> remote;

  /// The transport that moves bytes between the two, or why none does.
  std::function<Result<std::size_t>(const Region&, const RemoteRegion&)> route;

  /// As the transport's `takes_repeats`; null: none does.
  std::function<bool(std::size_t, const Registration&, const RemoteKey&)> takes_repeats{};
};

/// Checks every pair of spans against its regions, chooses its route and merges neighbours. A null list
/// means that a remote region is still waiting for the peer's message. `strided`: what moves of the spans, as
/// in a StridedList; none: all.
Result<std::shared_ptr<const SegmentList>> build_list(Operation operation, std::span<const LocalSpan> local,
                                                      std::span<const RemoteSpan> remote,
                                                      const ListContext& context,
                                                      std::span<const StridedPair> strided = {});

}  // namespace p2p::engine
