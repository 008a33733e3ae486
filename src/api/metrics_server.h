// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "api/metric_sources.h"
#include "api/metrics_place.h"
#include "base/mutex.h"
#include "drivers/http/server.h"
#include "engine/endpoint.h"
#include "p2p/options.h"

namespace p2p {

/// Answers for the endpoints of this process that name one place: their metrics and their health.
/// Thread-safe.
class MetricsServer {
 public:
  static Result<std::shared_ptr<MetricsServer>> of_process(const Options& options);

  void add(const engine::Endpoint& endpoint, std::shared_ptr<MetricSources> added);

  /// Once this returns the endpoint is not read any more.
  void remove(const engine::Endpoint& endpoint);

 private:
  struct Listed {
    const engine::Endpoint* endpoint;
    std::shared_ptr<MetricSources> added;
  };

  static Result<std::shared_ptr<MetricsServer>> start(const Options& options);
  std::string page(bool open) const;
  http::Reply answer(const http::Request& request) const;
  http::Reply health(bool ready) const P2P_REQUIRES(mutex_);

  mutable Mutex mutex_;  // held while a page is made, but not while functions of the program say their part
  std::vector<Listed> endpoints_ P2P_GUARDED_BY(mutex_);
  std::unique_ptr<MetricsPlace> place_;  // ends first
};

}  // namespace p2p
