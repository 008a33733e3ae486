// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace p2p::perf {

/// The smallest value that at least `fraction` (0 to 1) of the values do not exceed; 0 if there are none.
/// Reorders `values`.
double percentile(std::vector<double>& values, double fraction);

}  // namespace p2p::perf
