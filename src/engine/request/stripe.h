// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "p2p/memory.h"
#include "transport/batch.h"

/// Pure functions on lists of ranges: merging neighbours, cutting batches, pairing messages with receives.
namespace p2p::engine {

/// Appends `next` to `list`, or makes the last segment longer if both sides continue it. Empty ones vanish.
inline void append_merged(std::vector<Segment>& list, const Segment& next) {
  if (next.size == 0) return;
  if (!list.empty()) {
    Segment& last = list.back();
    if (last.repeats == nullptr && last.local + last.size == next.local &&
        last.remote + last.size == next.remote && last.registration == next.registration &&
        last.key == next.key) {
      last.size += next.size;
      return;
    }
  }
  list.push_back(next);
}

struct BatchLimits {
  std::uint64_t bytes = 0;
  std::size_t segments = 0;
};

/// Cuts the front of `rest` off, as much as is within `limits`; what is left of it has no segments at the
/// end.
Batch cut_batch(Batch& rest, const BatchLimits& limits);

/// Where one message goes: equal counts meet span by span, others as a stream of bytes.
struct Pairing {
  std::vector<LocalSpan> local;
  std::vector<RemoteSpan> remote;
};

/// kMessageTooLong if the message does not fit.
Result<Pairing> pair_message(std::span<const LocalSpan> message, std::span<const RemoteSpan> receive);

}  // namespace p2p::engine
