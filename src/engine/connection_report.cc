// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/connection_report.h"

#include <fmt/format.h>

#include <iterator>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "base/underlying.h"

namespace p2p::engine {

Result<Explanation> ConnectionReport::explain(RegionId local, RemoteRegionId remote) const {
  const auto here = parts_.regions->find(local);
  if (!here) return fail(ErrorCode::kNotFound, "explain a route: no local region {}", to_underlying(local));
  const auto there = parts_.imports->find(remote);
  if (!there) {
    return fail(ErrorCode::kNotFound, "explain a route: no remote region {} was imported",
                to_underlying(remote));
  }
  if (there->state() == RemoteRegion::State::kFailed) return tl::unexpected(there->error());
  if (there->state() == RemoteRegion::State::kWaiting) {
    return fail(ErrorCode::kUnavailable, "explain a route: the peer has not told of remote region {} yet",
                to_underlying(remote));
  }
  return parts_.lanes->router()->explain(*here, *there);
}

std::vector<Route> ConnectionReport::routes() const {
  auto routes = parts_.lanes->router()->routes();
  if (const std::string session = session_.describe(); !session.empty()) {
    for (Route& route : routes) {
      fmt::format_to(std::back_inserter(route.history), "{}session {}", route.history.empty() ? "" : "; ",
                     session);
    }
  }
  const auto slow = slow_for_.load();
  if (slow.count() == 0) return routes;
  for (Route& route : routes) {
    if (route.transport.empty()) continue;
    route.detail =
        fmt::format("slow: the peer's machine answers, it did not for {} ms; {}", slow.count(), route.detail);
  }
  return routes;
}

Stats ConnectionReport::stats() const {
  Stats stats;
  parts_.transfers->records().counts().add_to(stats);
  stats.messages_received = parts_.receives->received();
  stats.notifications_sent = parts_.notifications->sent();
  stats.notifications_received = parts_.notifications->received();
  stats.notifications_delayed = parts_.notifications->delayed();
  parts_.lanes->add_to(stats);
  stats.session_resumes = session_.returns();
  stats.reads_paused = reads_paused_.load(std::memory_order_relaxed);
  return stats;
}

void ConnectionReport::log_routes(ConnectionId id) const {
  for (const Route& route : parts_.lanes->router()->routes()) {
    if (route.transport.empty()) continue;
    log(LogLevel::kInfo, "connection {}: {} to {} memory by {}: {}", to_underlying(id),
        route.local == MemoryKind::kHost ? "host" : "CUDA",
        route.remote == MemoryKind::kHost ? "host" : "CUDA", route.transport, route.reason);
  }
}

}  // namespace p2p::engine
