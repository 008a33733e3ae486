// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/request/segment_list.h"
#include "p2p/stats.h"

namespace p2p::engine {

/// How long the transfers of one connection took, by transport and direction. Thread-safe.
class Latencies {
 public:
  /// `transports` outlives it.
  explicit Latencies(const TransportList& transports)
      : transports_(transports), rows_(2 * (transports.size() + 1)) {}
  ~Latencies();
  Latencies(const Latencies&) = delete;
  Latencies& operator=(const Latencies&) = delete;

  /// To ask for the time twice costs a short transfer some percent, so that most of them are not timed.
  /// `number`: how many were started before.
  static bool times(std::uint64_t number, std::uint64_t bytes) {
    return bytes >= kShort || number % kShortStandFor == 0;
  }

  /// Of a transfer that was timed. `shares` are empty if it went as the list says.
  void add(const SegmentList& list, std::span<const TransportShare> shares, std::chrono::nanoseconds took);

  /// Adds each row to that of the same place; `sum` is empty or was filled by another one of this endpoint.
  void add_to(std::vector<Latency>& sum) const;

 private:
  static constexpr std::uint64_t kShort = std::uint64_t{64} << 10;
  static constexpr std::uint64_t kShortStandFor = 8;

  struct Row {
    std::array<std::atomic<std::uint64_t>, Latency::kBuckets> counts{};
    std::atomic<std::uint64_t> nanoseconds{0};
  };
  Row& row(std::size_t place);

  const TransportList& transports_;
  std::vector<std::atomic<Row*>> rows_;  // writes and reads of each transport and of several; null: none yet
};

}  // namespace p2p::engine
