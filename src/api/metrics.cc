// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/metrics.h"

#include <fmt/format.h>

#include <iterator>
#include <string_view>
#include <vector>

#include "base/underlying.h"

namespace p2p {
namespace {

struct Counter {
  std::string_view name;  ///< without `_total`
  std::string_view unit;  ///< as the name ends, or none
  std::string_view help;
  std::uint64_t Stats::* value;
};

constexpr Counter kOfEndpoints[] = {
    {"strangers_refused", "", "Connections that were closed before they had proven themselves.",
     &Stats::strangers_refused},
    {"connections_refused", "",
     "Connections of peers that were refused because too many waited to be accepted.",
     &Stats::connections_refused},
};

constexpr Counter kCounters[] = {
    {"transfers_started", "", "Transfers that were submitted.", &Stats::transfers_started},
    {"transfers_completed", "", "Transfers that succeeded.", &Stats::transfers_completed},
    {"transfers_failed", "", "Transfers that failed or were cancelled.", &Stats::transfers_failed},
    {"written_bytes", "bytes", "Bytes of writes and sends that the peer has acknowledged.",
     &Stats::bytes_written},
    {"read_bytes", "bytes", "Bytes of reads that have landed here.", &Stats::bytes_read},
    {"messages_received", "", "Messages that met a receive.", &Stats::messages_received},
    {"notifications_sent", "", "Notifications sent.", &Stats::notifications_sent},
    {"notifications_received", "", "Notifications that came.", &Stats::notifications_received},
    {"notifications_delayed", "", "Notifications that waited until the peer had taken others.",
     &Stats::notifications_delayed},
    {"batches_retried", "", "Batches sent again on another channel after one was lost.",
     &Stats::batches_retried},
    {"reads_paused", "", "Times that a peer was not read from until it took its answers.",
     &Stats::reads_paused},
};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out.push_back('\\');
    if (c == '\n') {
      out += "\\n";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

/// Values at one time, and what they are called.
struct Series {
  std::string labels;
  Stats stats;
};

std::string_view carrier(const std::vector<Route>& routes) {
  // The first row is of host memory; who moves GPU memory alone is seen by `routes`.
  return routes.empty() || routes.front().transport.empty() ? "none"
                                                            : std::string_view(routes.front().transport);
}

std::vector<Series> connections_of(const Endpoint& endpoint) {
  std::vector<Series> found;
  for (const Connection& connection : endpoint.connections()) {
    if (connection.state() != ConnectionState::kOpen) continue;
    const Peer peer = connection.peer();
    const std::vector<Route> routes = connection.routes();
    found.push_back(
        {fmt::format(R"({{connection="{}",peer="{}",transport="{}"}})", to_underlying(connection.id()),
                     escaped(fmt::format("{} {}", peer.address, peer.port)), escaped(carrier(routes))),
         connection.stats()});
  }
  return found;
}

}  // namespace

std::string openmetrics(const Endpoint& endpoint) {
  const Stats whole = endpoint.stats();
  const std::vector<Series> connections = connections_of(endpoint);
  std::string text;
  auto out = std::back_inserter(text);
  const auto family = [&](std::string_view scope, const Counter& counter) {
    fmt::format_to(out, "# TYPE p2p_{}_{} counter\n", scope, counter.name);
    if (!counter.unit.empty())
      fmt::format_to(out, "# UNIT p2p_{}_{} {}\n", scope, counter.name, counter.unit);
    fmt::format_to(out, "# HELP p2p_{}_{} {}\n", scope, counter.name, counter.help);
  };
  for (const Counter& counter : kOfEndpoints) {
    family("endpoint", counter);
    fmt::format_to(out, "p2p_endpoint_{}_total {}\n", counter.name, whole.*counter.value);
  }
  for (const Counter& counter : kCounters) {
    family("endpoint", counter);
    fmt::format_to(out, "p2p_endpoint_{}_total {}\n", counter.name, whole.*counter.value);
    family("connection", counter);
    for (const Series& one : connections) {
      fmt::format_to(out, "p2p_connection_{}_total{} {}\n", counter.name, one.labels,
                     one.stats.*counter.value);
    }
  }
  const auto gauge = [&](std::string_view name, std::string_view help) {
    fmt::format_to(out, "# TYPE {} gauge\n# HELP {} {}\n", name, name, help);
  };
  gauge("p2p_connections", "Open connections.");
  fmt::format_to(out, "p2p_connections {}\n", connections.size());
  gauge("p2p_transfers_under_way", "Transfers that have not ended.");
  for (const auto& [labels, stats] : connections) {
    const std::uint64_t ended = stats.transfers_completed + stats.transfers_failed;
    // The counters are read one after the other.
    fmt::format_to(out, "p2p_transfers_under_way{} {}\n", labels,
                   stats.transfers_started > ended ? stats.transfers_started - ended : 0);
  }
  text += "# EOF\n";
  return text;
}

}  // namespace p2p
