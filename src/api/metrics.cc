// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/metrics.h"

#include "api/metrics_text.h"
#include "engine/endpoint.h"

namespace p2p {

std::string openmetrics(const Endpoint& endpoint) {
  const engine::Endpoint* const one = endpoint.endpoint_.get();
  if (!one->context().regions->check_process()) return {};
  return metrics_text({&one, 1}, MetricsFormat::kOpenMetrics);
}

}  // namespace p2p
