// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "api/metrics_listing.h"

#include <utility>

#include "api/metrics_server.h"
#include "base/error.h"
#include "base/log.h"

namespace p2p {

MetricsListing::MetricsListing(std::shared_ptr<MetricsServer> server, const engine::Endpoint& endpoint,
                               const std::shared_ptr<MetricSources>& added)
    : server_(std::move(server)), endpoint_(endpoint) {
  server_->add(endpoint_, added);
}

MetricsListing::~MetricsListing() { server_->remove(endpoint_); }

Result<std::unique_ptr<MetricsListing>> MetricsListing::make(const Options& options,
                                                             const engine::Endpoint& endpoint,
                                                             const std::shared_ptr<MetricSources>& added) {
  if (options.metrics.empty()) return nullptr;
  auto server = MetricsServer::of_process(options);
  if (server) {
    return std::unique_ptr<MetricsListing>(new MetricsListing(std::move(*server), endpoint, added));
  }
  const Error& error = server.error();
  switch (error.code) {
    case ErrorCode::kInvalidArgument: return fail(error.code, "UCCL_P2P_METRICS: {}", error.message);
    case ErrorCode::kPermissionDenied:
      return fail(error.code, "UCCL_P2P_METRICS: {}; UCCL_P2P_METRICS_PUBLIC=1 allows that", error.message);
    default: log(LogLevel::kWarning, "no metrics are served: {}", error.message); return nullptr;
  }
}

}  // namespace p2p
