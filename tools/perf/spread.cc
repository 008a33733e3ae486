// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "spread.h"

#include <algorithm>
#include <vector>

#include "percentile.h"

namespace p2p::perf {
namespace {

constexpr std::size_t kRounds = 5;

}  // namespace

Spread spread_of(std::span<const std::chrono::steady_clock::time_point> ends,
                 std::chrono::steady_clock::time_point start, std::uint64_t bytes, std::uint64_t depth) {
  if (ends.empty()) return {};
  const std::size_t rounds = std::clamp<std::size_t>(ends.size() / depth, 1, kRounds);
  std::vector<double> rates;
  std::size_t before = 0;
  for (std::size_t round = 1; round <= rounds; ++round) {
    const std::size_t until = ends.size() * round / rounds;
    const std::chrono::duration<double> took = ends[until - 1] - start;
    rates.push_back(static_cast<double>((until - before) * bytes) / took.count() / 1e9);
    start = ends[until - 1];
    before = until;
  }
  return {percentile(rates, 0), percentile(rates, 0.5), percentile(rates, 1)};
}

}  // namespace p2p::perf
