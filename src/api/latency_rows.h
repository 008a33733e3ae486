// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/transfer/latencies.h"
#include "p2p/stats.h"

namespace p2p {

/// The rows that have counted anything.
inline std::vector<Latency> with_any(std::vector<Latency> rows) {
  std::erase_if(rows, [](const Latency& row) {
    return std::ranges::all_of(row.counts, [](std::uint64_t count) { return count == 0; });
  });
  return rows;
}

inline std::vector<Latency> with_any(const engine::Latencies& latencies) {
  std::vector<Latency> rows;
  latencies.add_to(rows);
  return with_any(std::move(rows));
}

}  // namespace p2p
