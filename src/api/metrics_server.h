// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "base/mutex.h"
#include "drivers/http/server.h"
#include "engine/endpoint.h"
#include "p2p/options.h"

namespace p2p {

/// Serves the metrics of endpoints, and their health, at one place (address and port), one server for each
/// place in a process. Thread-safe.
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
  std::unique_ptr<http::Server> server_;  // ends first
};

}  // namespace p2p
