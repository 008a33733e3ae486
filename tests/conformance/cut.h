// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "transport/transport.h"

namespace p2p::conformance {

/// Cuts a transfer into the largest batches that a transport takes; at least one, which may be empty. The
/// batches have no id yet and view `segments`.
inline std::vector<Batch> cut(Operation operation, std::span<const Segment> segments,
                              const Capabilities& capabilities) {
  std::vector<Batch> batches;
  std::size_t next = 0;
  std::uint64_t offset = 0;
  do {
    Batch batch{.operation = operation, .skip = offset};
    const std::size_t begin = next;
    while (next < segments.size() && batch.bytes < capabilities.max_batch_bytes &&
           next - begin < capabilities.max_batch_segments) {
      const std::uint64_t left = segments[next].size - offset;
      const std::uint64_t taken = std::min(left, capabilities.max_batch_bytes - batch.bytes);
      batch.bytes += taken;
      offset += taken;
      if (taken == left) {
        ++next;
        offset = 0;
      }
    }
    batch.segments = segments.subspan(begin, next - begin + (offset != 0 ? 1 : 0));
    batches.push_back(batch);
  } while (next < segments.size());
  return batches;
}

}  // namespace p2p::conformance
