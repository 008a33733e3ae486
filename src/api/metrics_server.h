// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

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

  void add(const engine::Endpoint& endpoint);

  /// Once this returns the endpoint is not read any more.
  void remove(const engine::Endpoint& endpoint);

 private:
  static Result<std::shared_ptr<MetricsServer>> start(const Options& options);
  http::Reply answer(const http::Request& request) const;
  http::Reply health(bool ready) const P2P_REQUIRES(mutex_);

  mutable Mutex mutex_;  // held while a page is made
  std::vector<const engine::Endpoint*> endpoints_ P2P_GUARDED_BY(mutex_);
  std::unique_ptr<MetricsPlace> place_;  // ends first
};

}  // namespace p2p
