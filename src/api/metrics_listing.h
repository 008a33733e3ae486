// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "api/metric_sources.h"
#include "engine/endpoint.h"
#include "p2p/options.h"

namespace p2p {

class MetricsServer;

/// Serves the metrics of an endpoint, at the place that its options name, as long as it lives. The endpoint
/// must outlive it.
class MetricsListing {
 public:
  /// Null if the options name no place, or if it cannot be had: the log says why. kInvalidArgument for a text
  /// that is no place, kPermissionDenied for one that the options do not allow.
  static Result<std::unique_ptr<MetricsListing>> make(const Options& options,
                                                      const engine::Endpoint& endpoint,
                                                      const std::shared_ptr<MetricSources>& added);

  ~MetricsListing();
  MetricsListing(const MetricsListing&) = delete;
  MetricsListing& operator=(const MetricsListing&) = delete;

 private:
  MetricsListing(std::shared_ptr<MetricsServer> server, const engine::Endpoint& endpoint,
                 const std::shared_ptr<MetricSources>& added);

  const std::shared_ptr<MetricsServer> server_;
  const engine::Endpoint& endpoint_;
};

}  // namespace p2p
