// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "p2p/api.h"

namespace p2p {

class MetricSource;

enum class MetricKind : std::uint8_t { kCounter, kGauge };

/// A metric that a program adds to those of an endpoint (`Endpoint::add_metrics`), in base units: bytes,
/// seconds.
struct MetricFamily {
  std::string name;  ///< "trainer_step_seconds". Of a counter without "_total", which the page adds
  std::string help;  ///< a sentence, of printable ASCII without quotes and backslashes
  MetricKind kind = MetricKind::kGauge;
  std::vector<std::string> labels{};  ///< names. The page adds "endpoint" before them
};

/// A value of one of the families that were added together.
struct MetricSample {
  std::size_t family = 0;             ///< its place among them
  std::vector<std::string> labels{};  ///< one for each label name: printable ASCII, cut after 256 bytes
  double value = 0;                   ///< finite; of a counter not negative
};

/// Called for each page, on a thread of its own and without a lock of the engine. One call at a time.
using MetricFunction = std::function<std::vector<MetricSample>()>;

/// What was added to the metrics of an endpoint, as long as this lives. It may outlive the endpoint. One
/// thread at a time.
class P2P_API AddedMetrics {
 public:
  AddedMetrics();
  explicit AddedMetrics(std::shared_ptr<MetricSource> source);
  AddedMetrics(AddedMetrics&&) noexcept;
  AddedMetrics& operator=(AddedMetrics&& other) noexcept;
  ~AddedMetrics();

  /// No page has it any more. Waits for a call of the function that is under way, unless that is the caller.
  /// So the caller holds no lock that the function takes.
  void end();

 private:
  std::shared_ptr<MetricSource> source_;
};

}  // namespace p2p
