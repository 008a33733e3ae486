// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/metric_sources.h"
#include "engine/endpoint.h"

namespace p2p {

enum class MetricsFormat : std::uint8_t {
  kOpenMetrics,
  kPrometheus,  ///< its older text format, 0.0.4
};

/// Whose metrics stand on a page: the engine's, and what the program has added to them.
struct MetricsOf {
  const engine::Endpoint* endpoint = nullptr;
  std::vector<AddedSamples> added{};
};

/// The text of `openmetrics`, for several endpoints together.
std::string metrics_text(std::span<const MetricsOf> all, MetricsFormat format);

/// Whether pages have a metric of that name without programs, counters without "_total".
bool is_engine_metric(std::string_view name);

}  // namespace p2p
