// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

namespace p2p::perf {

/// Of some values.
struct Spread {
  double least = 0;
  double median = 0;
  double most = 0;
};

/// GB/s of up to five rounds of equally many transfers of `bytes`, one round after the other. Each transfer
/// ended at one of `ends`, none later than the next; the first began at `start`, and `depth` of them were in
/// flight at a time: these end almost together, so a round has no fewer.
Spread spread_of(std::span<const std::chrono::steady_clock::time_point> ends,
                 std::chrono::steady_clock::time_point start, std::uint64_t bytes, std::uint64_t depth);

}  // namespace p2p::perf
