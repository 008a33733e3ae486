// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "api/metrics_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
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

void MetricsServer::add(const engine::Endpoint& endpoint, std::shared_ptr<MetricSources> added) {
  MutexLock lock(mutex_);
  endpoints_.push_back({&endpoint, std::move(added)});
}

void MetricsServer::remove(const engine::Endpoint& endpoint) {
  MutexLock lock(mutex_);
  std::erase_if(endpoints_, [&](const Listed& one) { return one.endpoint == &endpoint; });
}

// For probes: whether the control threads do their work, and whether peers can connect.
http::Reply MetricsServer::health(bool ready) const {
  constexpr std::chrono::milliseconds kPatience{1000};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::vector<std::pair<const engine::Endpoint*, std::future<void>>> asked;
  for (const auto& [endpoint, added] : endpoints_) {
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
  const auto open =
      std::ranges::count_if(endpoints_, [](const Listed& one) { return one.endpoint->listens(); });
  if (ready && open == 0) return {503, "text/plain", "no endpoint listens\n"};
  return {200, "text/plain", fmt::format("ok, {} endpoints listen\n", open)};
}

std::string MetricsServer::page(bool open) const {
  // An endpoint may end meanwhile, and its address be another one's; what was added to it stays.
  std::map<std::shared_ptr<MetricSources>, std::vector<std::shared_ptr<MetricSource>>> asked;
  {
    MutexLock lock(mutex_);
    for (const Listed& one : endpoints_) asked[one.added] = one.added->asked();
  }
  const auto deadline = MetricSource::Clock::now() + MetricSources::kPatience;
  std::map<std::shared_ptr<MetricSources>, std::vector<AddedSamples>> said;
  for (const auto& [added, sources] : asked) said[added] = answers_of(sources, deadline);
  MutexLock lock(mutex_);
  std::vector<MetricsOf> all;
  all.reserve(endpoints_.size());
  for (const Listed& one : endpoints_) all.push_back({one.endpoint, said[one.added]});
  return metrics_text(all, open ? MetricsFormat::kOpenMetrics : MetricsFormat::kPrometheus);
}

// Collectors that do not ask for OpenMetrics get the older text format, which all of them read.
http::Reply MetricsServer::answer(const http::Request& request) const {
  if (request.path == "/healthz" || request.path == "/readyz") {
    MutexLock lock(mutex_);
    return health(request.path == "/readyz");
  }
  if (request.path != "/metrics")
    return {404, "text/plain", "the pages are /metrics, /healthz and /readyz\n"};
  const bool open = request.accept.find("application/openmetrics-text") != std::string::npos;
  return {200,
          open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
               : "text/plain; version=0.0.4; charset=utf-8",
          page(open)};
}

}  // namespace p2p
