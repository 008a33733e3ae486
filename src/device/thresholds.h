// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "device/copier.h"

namespace p2p::device {

/// How long copies of one size took, in microseconds, by copy engine and by a kernel.
struct Timing {
  std::uint64_t bytes = 0;
  double engine_us = 0;
  double kernel_us = 0;
};

/// In ascending order of sizes.
struct Timings {
  std::vector<Timing> lists;    ///< several pieces of that size, the kernel being launched for them
  std::vector<Timing> singles;  ///< one piece, the kernel being one that stands by
};

/// What of `fallback` the timings do not tell stays. Lists go by copy engine from the least size from which
/// on it is no slower, single pieces by the kernel that stands by up to the largest at which it is no slower.
Ways choose_ways(const Timings& timings, const Ways& fallback);

}  // namespace p2p::device
