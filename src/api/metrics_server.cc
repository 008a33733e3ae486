// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "api/metrics_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <utility>

#include "api/metrics_text.h"
#include "base/shared_by_name.h"

namespace p2p {

Result<std::shared_ptr<MetricsServer>> MetricsServer::of_process(const Options& options) {
  return SharedByName<MetricsServer>::of_process().get(options.metrics, [&] { return start(options); });
}

Result<std::shared_ptr<MetricsServer>> MetricsServer::start(const Options& options) {
  auto made = std::make_shared<MetricsServer>();
  auto joined =
      MetricsPlace::join({.place = options.metrics, .anybody = options.metrics_public},
                         [self = made.get()](const http::Request& request) { return self->answer(request); });
  if (!joined) return tl::unexpected(joined.error());
  made->place_ = std::move(*joined);
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

// For probes: whether the control threads do their work, and whether peers can connect.
http::Reply MetricsServer::health(bool ready) const {
  constexpr std::chrono::milliseconds kPatience{1000};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::vector<std::pair<const engine::Endpoint*, std::future<void>>> asked;
  for (const engine::Endpoint* const endpoint : endpoints_) {
    auto answered = std::make_shared<std::promise<void>>();
    asked.emplace_back(endpoint, answered->get_future());
    endpoint->context().reactor->post([answered] { answered->set_value(); });
  }
  for (const auto& [endpoint, answer] : asked) {
    if (answer.wait_until(deadline) == std::future_status::ready) continue;
    return {503, "text/plain",
            fmt::format("the control thread of the endpoint {} {} has not answered for {} ms\n",
                        endpoint->address(), endpoint->port(), kPatience.count())};
  }
  const auto open = std::ranges::count_if(endpoints_, [](const auto* one) { return one->listens(); });
  if (ready && open == 0) return {503, "text/plain", "no endpoint listens\n"};
  return {200, "text/plain", fmt::format("ok, {} endpoints listen\n", open)};
}

// Collectors that do not ask for OpenMetrics get the older text format, which all of them read.
http::Reply MetricsServer::answer(const http::Request& request) const {
  MutexLock lock(mutex_);
  if (request.path == "/healthz" || request.path == "/readyz") return health(request.path == "/readyz");
  if (request.path != "/metrics")
    return {404, "text/plain", "the pages are /metrics, /healthz and /readyz\n"};
  const bool open = request.accept.find("application/openmetrics-text") != std::string::npos;
  return {200,
          open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
               : "text/plain; version=0.0.4; charset=utf-8",
          metrics_text(endpoints_, open ? MetricsFormat::kOpenMetrics : MetricsFormat::kPrometheus)};
}

}  // namespace p2p
