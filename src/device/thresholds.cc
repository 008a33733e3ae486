// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/thresholds.h"

#include <algorithm>
#include <ranges>

namespace p2p::device {
namespace {

// Where both take the same time, the way that leaves the multiprocessors alone; timings scatter by this much.
constexpr double kSame = 1.02;

}  // namespace

Ways choose_ways(const Timings& timings, const Ways& fallback) {
  Ways ways = fallback;
  if (!timings.lists.empty()) {
    // What is beyond the largest size is not known; the engine gains on the kernel there.
    ways.bulk_bytes = std::max(fallback.bulk_bytes, 2 * timings.lists.back().bytes);
    for (const Timing& each : std::views::reverse(timings.lists)) {
      if (each.engine_us > kSame * each.kernel_us) break;
      ways.bulk_bytes = each.bytes;
    }
  }
  if (!timings.singles.empty()) {
    // Below the smallest size the start counts for more, which is what the kernel saves.
    ways.standby_bytes = timings.singles.front().bytes / 2;
    for (const Timing& each : timings.singles) {
      if (each.kernel_us > each.engine_us) break;
      ways.standby_bytes = each.bytes;
    }
  }
  return ways;
}

}  // namespace p2p::device
