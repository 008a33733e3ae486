// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "p2p/memory.h"
#include "p2p/result.h"
#include "transport/batch.h"
#include "transport/tcp/stream/strided_ranges.h"

namespace p2p::tcp {

/// Consecutive ranges of one region.
struct RangeGroup {
  RegionId region{};
  RegionKey key{};
  std::size_t count = 0;
};

/// The remote side of a batch: ranges in the order of the payload, and whose they are.
struct RangeList {
  std::vector<RemoteRange> ranges;
  std::vector<RangeGroup> groups;

  void clear() {
    ranges.clear();
    groups.clear();
  }
};

/// The remote ranges of `batch`; neighbours that are contiguous over there become one.
void collect_ranges(const Batch& batch, RangeList& list);

/// Appends the compact form: for each group the region, its key and, where the ranges are strided, what
/// StridedRanges has, at most 64 bytes with region and key. Otherwise either deltas and lengths or, where all
/// ranges are equally long and whole lengths apart, a base and indices; whichever is shorter.
void encode_ranges(const RangeList& list, Bytes& out);

/// Replaces `list` by what `bytes` say. kProtocol unless that is 1 to kMaxRanges ranges, none empty, of
/// `total` bytes together (or nothing for nothing). A range may lie anywhere, also across the end of the
/// address space: who uses it checks it against the region. `list` is undefined after a failure.
Status decode_ranges(ByteView bytes, std::uint64_t total, RangeList& list);

}  // namespace p2p::tcp
