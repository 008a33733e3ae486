// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "p2p/added_metrics.h"

namespace p2p::weights {

/// What went through a member of a class, for those who watch.
struct Account {
  using Clock = std::chrono::steady_clock;

  std::map<std::string, std::uint64_t> received;  ///< bytes as they travelled, by the place of who gave them
  std::uint64_t given = 0;                        ///< as those who took them say
  std::chrono::nanoseconds waited{0};             ///< with nothing under way though something lacks
  std::string waits_for;                          ///< whom it waits for now; empty: it does not
  Clock::time_point since;                        ///< when that was said last

  /// From `now` on it waits for `whom`; empty: for nobody.
  void wait_for(const std::string& whom, Clock::time_point now);
};

/// What a member adds to the metrics of its endpoint (docs/watching.md).
class Samples {
 public:
  static std::vector<MetricFamily> families();

  void published(std::uint64_t version, std::uint64_t bytes, std::size_t copies, std::uint64_t given);
  void subscribed(std::uint64_t version, std::uint64_t bytes, std::uint64_t held, const Account& account);
  /// Bytes come from there now.
  void takes(std::uint64_t version, const std::string& from);
  void waits(std::uint64_t version, const std::string& on);

  std::vector<MetricSample> take() { return std::move(samples_); }

 private:
  std::vector<MetricSample> samples_;
};

}  // namespace p2p::weights
