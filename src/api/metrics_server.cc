// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "api/metrics_server.h"

#include <string>
#include <utility>

#include "api/metrics_text.h"
#include "base/log.h"
#include "base/shared_by_name.h"

namespace p2p {

Result<std::shared_ptr<MetricsServer>> MetricsServer::of_process(const Options& options) {
  return SharedByName<MetricsServer>::of_process().get(options.metrics, [&] { return start(options); });
}

Result<std::shared_ptr<MetricsServer>> MetricsServer::start(const Options& options) {
  auto made = std::make_shared<MetricsServer>();
  auto server = http::Server::start(
      {.place = options.metrics, .anybody = options.metrics_public},
      [self = made.get()](const http::Request& request) { return self->answer(request); });
  if (!server) return tl::unexpected(server.error());
  made->server_ = std::move(*server);
  log(LogLevel::kInfo, "metrics are served at http://{}/metrics", made->server_->place());
  return made;
}

void MetricsServer::add(const engine::Endpoint& endpoint) {
  MutexLock lock(mutex_);
  endpoints_.push_back(&endpoint);
}

void MetricsServer::remove(const engine::Endpoint& endpoint) {
  MutexLock lock(mutex_);
  std::erase(endpoints_, &endpoint);
}

// Collectors that do not ask for OpenMetrics get the older text format, which all of them read.
http::Reply MetricsServer::answer(const http::Request& request) const {
  if (request.path != "/metrics") return {404, "text/plain", "the page is /metrics\n"};
  const bool open = request.accept.find("application/openmetrics-text") != std::string::npos;
  MutexLock lock(mutex_);
  return {200,
          open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
               : "text/plain; version=0.0.4; charset=utf-8",
          metrics_text(endpoints_, open ? MetricsFormat::kOpenMetrics : MetricsFormat::kPrometheus)};
}

}  // namespace p2p
