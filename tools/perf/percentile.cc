// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "percentile.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace p2p::perf {

double percentile(std::vector<double>& values, double fraction) {
  if (values.empty()) return 0;
  const double rank = std::ceil(fraction * static_cast<double>(values.size())) - 1;
  const auto index = static_cast<std::ptrdiff_t>(std::max(rank, 0.0));
  const auto at = values.begin() + std::min(index, static_cast<std::ptrdiff_t>(values.size()) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace p2p::perf
