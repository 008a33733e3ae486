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
void append_merged(std::vector<Segment>& list, const Segment& next);

/// How far a list has been cut.
struct Cursor {
  std::size_t segment = 0;
  std::uint64_t offset = 0;  ///< bytes used of that segment
};

/// A run of a list that fits one batch.
struct Cut {
  std::span<const Segment> segments;
  std::uint64_t skip = 0;
  std::uint64_t bytes = 0;
};

struct CutLimits {
  std::uint64_t bytes = 0;
  std::size_t segments = 0;
};

/// The next run of `list` from `cursor` on, within `limits`; empty at the end. Moves the cursor.
Cut next_cut(std::span<const Segment> list, Cursor& cursor, const CutLimits& limits);

/// Where one message goes: equal counts meet span by span, others as a stream of bytes.
struct Pairing {
  std::vector<LocalSpan> local;
  std::vector<RemoteSpan> remote;
};

/// kMessageTooLong if the message does not fit.
Result<Pairing> pair_message(std::span<const LocalSpan> message, std::span<const RemoteSpan> receive);

}  // namespace p2p::engine
