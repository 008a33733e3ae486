// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "engine/endpoint.h"
#include "p2p/options.h"

namespace p2p {

class MetricsServer;

/// While it lives, the metrics of an endpoint are served where its options say. The endpoint outlives it.
class MetricsListing {
 public:
  /// Null if the options name no place, or it cannot be had, which the log says. An error for a place that is
  /// none or that the options do not allow.
  static Result<std::unique_ptr<MetricsListing>> make(const Options& options,
                                                      const engine::Endpoint& endpoint);

  ~MetricsListing();
  MetricsListing(const MetricsListing&) = delete;
  MetricsListing& operator=(const MetricsListing&) = delete;

 private:
  MetricsListing(std::shared_ptr<MetricsServer> server, const engine::Endpoint& endpoint);

  const std::shared_ptr<MetricsServer> server_;
  const engine::Endpoint& endpoint_;
};

}  // namespace p2p
