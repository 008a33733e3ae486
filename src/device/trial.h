// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "device/copier.h"
#include "device/thresholds.h"
#include "p2p/result.h"

namespace p2p::device {

/// The largest piece that `try_ways` copies.
inline constexpr std::uint64_t kTrialBytes = std::uint64_t{32} << 20;

/// And the smallest one.
inline constexpr std::uint64_t kLeastTrialBytes = std::uint64_t{1} << 20;

/// Copies `most`, whose target's content nobody misses, and less of it, in pieces of several sizes and each
/// way, and tells how long that took. Begins nothing after `time`; sizes that it has not come to are left
/// out. kCancelled once `undisturbed` is false, which is asked before each copy. Another error if a copy
/// failed, or did not end: the copier is not to be used any more then.
Result<Timings> try_ways(Copier& copier, const kernels::CopyBlock& most, std::chrono::nanoseconds time,
                         const std::function<bool()>& undisturbed);

}  // namespace p2p::device
