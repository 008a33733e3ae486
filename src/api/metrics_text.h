// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/endpoint.h"

namespace p2p {

enum class MetricsFormat : std::uint8_t {
  kOpenMetrics,
  kPrometheus,  ///< its older text format, 0.0.4
};

/// The text of `openmetrics`, for several endpoints together.
std::string metrics_text(std::span<const engine::Endpoint* const> endpoints, MetricsFormat format);

}  // namespace p2p
