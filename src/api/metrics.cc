// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/metrics.h"

#include "api/metric_sources.h"
#include "api/metrics_text.h"
#include "engine/endpoint.h"

namespace p2p {

std::string openmetrics(const Endpoint& endpoint) {
  const engine::Endpoint* const one = endpoint.endpoint_.get();
  if (!one->context().regions->check_process()) return {};
  const auto deadline = MetricSource::Clock::now() + MetricSources::kPatience;
  const MetricsOf page{one, answers_of(endpoint.sources_->asked(), deadline)};
  return metrics_text({&page, 1}, MetricsFormat::kOpenMetrics);
}

}  // namespace p2p
