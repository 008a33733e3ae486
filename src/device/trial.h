// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include "device/copier.h"
#include "device/thresholds.h"
#include "p2p/result.h"

namespace p2p::device {

/// The largest piece that `try_ways` copies.
inline constexpr std::uint64_t kTrialBytes = std::uint64_t{32} << 20;

/// And the smallest one.
inline constexpr std::uint64_t kLeastTrialBytes = std::uint64_t{1} << 20;

/// Copies `bytes` at most from `source` to `sink`, whose content nobody misses, in pieces of several sizes
/// and each way, and tells how long that took. Begins nothing after `time`; sizes that it has not come to are
/// left out. An error if a copy failed, or did not end: the copier is not to be used any more then.
Result<Timings> try_ways(Copier& copier, const std::byte* source, std::byte* sink, std::uint64_t bytes,
                         std::chrono::nanoseconds time);

}  // namespace p2p::device
