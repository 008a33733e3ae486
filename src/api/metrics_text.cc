// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "api/metrics_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <string_view>
#include <vector>

#include "base/underlying.h"

namespace p2p {
namespace {

struct Metric {
  std::string_view name;  ///< without what stands before and after it
  std::string_view help;
  std::uint64_t Stats::* value;
};

constexpr Metric kEndpointCounters[] = {
    {"strangers_refused", "Connections that were closed before they had proven themselves.",
     &Stats::strangers_refused},
    {"connections_refused", "Connections of peers that were refused because too many waited to be accepted.",
     &Stats::connections_refused},
};

constexpr Metric kCounters[] = {
    {"transfers_started", "Transfers that were submitted.", &Stats::transfers_started},
    {"transfers_completed", "Transfers that succeeded.", &Stats::transfers_completed},
    {"transfers_failed", "Transfers that failed or were cancelled.", &Stats::transfers_failed},
    {"written_bytes", "Bytes of writes and sends that the peer has acknowledged.", &Stats::bytes_written},
    {"read_bytes", "Bytes of reads that have landed here.", &Stats::bytes_read},
    {"messages_received", "Messages that met a receive.", &Stats::messages_received},
    {"notifications_sent", "Notifications sent.", &Stats::notifications_sent},
    {"notifications_received", "Notifications that came.", &Stats::notifications_received},
    {"notifications_delayed", "Notifications that waited until the peer had taken others.",
     &Stats::notifications_delayed},
    {"batches_retried", "Batches sent again on another channel after one was lost.", &Stats::batches_retried},
    {"channels_lost", "Channels that had been up and were lost.", &Stats::channels_lost},
    {"channels_returned", "Channels that were lost and are up again.", &Stats::channels_returned},
    {"session_resumes", "Times that a session went on over another connection after its own had broken.",
     &Stats::session_resumes},
    {"reads_paused", "Times that a peer was not read from until it took its answers.", &Stats::reads_paused},
};

constexpr Metric kConnectionGauges[] = {
    {"pieces_queued", "Pieces of transfers that wait for room in a channel.", &Stats::pieces_queued},
    {"channels", "Channels that are up, of all transports.", &Stats::channels},
    {"channels_wanted", "Channels that there are when none is lost.", &Stats::channels_wanted},
    {"channels_encrypted", "Of those that are up, those that are encrypted.", &Stats::channels_encrypted},
};

constexpr Metric kEndpointGauges[] = {
    {"connections_waiting", "Connections that wait to be accepted.", &Stats::connections_waiting},
    {"bytes_kept_for_peers", "Bytes that peers make the endpoint keep.", &Stats::bytes_kept_for_peers},
    {"registered_regions", "Regions of memory that are registered.", &Stats::registered_regions},
    {"registered_bytes", "Bytes of these.", &Stats::registered_bytes},
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
  std::string labels;   ///< without braces
  std::string carrier;  ///< one more label, which a histogram has of its own; or none
  Stats stats;
  std::vector<Latency> latencies;
  std::size_t connections = 0;  ///< of an endpoint: that are open
};

/// The transport that moves host memory. A label for the connection; see `routes` for GPU memory.
std::string carrier(const std::vector<Route>& routes) {
  return routes.empty() || routes.front().transport.empty() ? "none" : routes.front().transport;
}

std::vector<Series> connections_of(const engine::Endpoint& endpoint, std::string_view endpoint_label) {
  std::vector<Series> found;
  for (const auto& connection : endpoint.connections()) {
    if (connection->state() != ConnectionState::kOpen) continue;
    const Peer peer = connection->peer();
    Series one{fmt::format(R"({},connection="{}",peer="{}")", endpoint_label, to_underlying(connection->id()),
                           escaped(fmt::format("{} {}", peer.address, peer.port))),
               fmt::format(R"(,transport="{}")", escaped(carrier(connection->report().routes()))),
               connection->report().stats(),
               {}};
    connection->latencies().add_to(one.latencies);
    found.push_back(std::move(one));
  }
  return found;
}

/// Transfers that have not ended. The counters are read one after the other, so the difference may be off by
/// some.
std::uint64_t under_way(const Stats& stats) {
  const std::uint64_t ended = stats.transfers_completed + stats.transfers_failed;
  return std::max(stats.transfers_started, ended) - ended;
}

class Page {
 public:
  explicit Page(MetricsFormat format) : open_(format == MetricsFormat::kOpenMetrics) {}

  template <class Value>
  void counter(std::string_view scope, const Metric& metric, const std::vector<Series>& all,
               const Value& value) {
    const std::string name = fmt::format("p2p_{}_{}", scope, metric.name);
    family(open_ ? name : name + "_total", "counter", metric.help);
    for (const Series& one : all) {
      fmt::format_to(out(), "{}_total{{{}{}}} {}\n", name, one.labels, one.carrier, value(one.stats));
    }
  }

  void transport_bytes(std::string_view scope, const std::vector<Series>& all) {
    const std::string name = fmt::format("p2p_{}_transport_bytes", scope);
    family(open_ ? name : name + "_total", "counter",
           "Bytes that each transport moved for own transfers that succeeded.");
    for (const Series& one : all) {
      for (const TransportBytes& bytes : one.stats.by_transport) {
        const std::string labels = fmt::format(R"({},transport="{}")", one.labels, escaped(bytes.transport));
        fmt::format_to(out(), "{0}_total{{{1},direction=\"write\"}} {2}\n", name, labels, bytes.written);
        fmt::format_to(out(), "{0}_total{{{1},direction=\"read\"}} {2}\n", name, labels, bytes.read);
      }
    }
  }

  template <class Value>
  void gauge(std::string_view name, std::string_view help, const std::vector<Series>& all,
             const Value& value) {
    family(name, "gauge", help);
    for (const Series& one : all)
      fmt::format_to(out(), "{}{{{}{}}} {}\n", name, one.labels, one.carrier, value(one));
  }

  void histogram(std::string_view scope, const std::vector<Series>& all) {
    const std::string name = fmt::format("p2p_{}_transfer_seconds", scope);
    family(name, "histogram", "From the call to the outcome of transfers that succeeded.");
    for (const Series& one : all) {
      for (const Latency& latency : one.latencies) buckets(name, one.labels, latency);
    }
  }

  /// Of programs. Where two endpoints have a name for different things, the first one has it.
  void added(std::span<const MetricsOf> all, const std::vector<Series>& wholes) {
    struct Rows {
      const MetricFamily* family;
      std::map<std::string, double> by_labels{};
    };
    std::map<std::string_view, Rows> found;
    for (std::size_t at = 0; at < all.size(); ++at) {
      for (const AddedSamples& one : all[at].added) {
        for (const MetricSample& sample : one.samples) {
          const MetricFamily& family = (*one.families)[sample.family];
          Rows& rows = found.try_emplace(family.name, Rows{&family}).first->second;
          if (rows.family->kind != family.kind) continue;
          std::string labels = wholes[at].labels;
          for (std::size_t i = 0; i < sample.labels.size(); ++i) {
            labels += fmt::format(R"(,{}="{}")", family.labels[i], escaped(sample.labels[i]));
          }
          rows.by_labels.try_emplace(std::move(labels), sample.value);
        }
      }
    }
    for (const auto& [name, rows] : found) {
      const bool counter = rows.family->kind == MetricKind::kCounter;
      const std::string series = counter ? fmt::format("{}_total", name) : std::string(name);
      family(counter && open_ ? name : series, counter ? "counter" : "gauge", rows.family->help);
      for (const auto& [labels, value] : rows.by_labels) {
        fmt::format_to(out(), "{}{{{}}} {}\n", series, labels, value);
      }
    }
  }

  std::string end() && {
    if (open_) text_ += "# EOF\n";
    return std::move(text_);
  }

 private:
  std::back_insert_iterator<std::string> out() { return std::back_inserter(text_); }

  void family(std::string_view name, std::string_view type, std::string_view help) {
    fmt::format_to(out(), "# TYPE {} {}\n", name, type);
    if (open_ && name.ends_with("_bytes")) fmt::format_to(out(), "# UNIT {} bytes\n", name);
    if (open_ && name.ends_with("_seconds")) fmt::format_to(out(), "# UNIT {} seconds\n", name);
    fmt::format_to(out(), "# HELP {} {}\n", name, help);
  }

  void buckets(std::string_view name, std::string_view labels, const Latency& latency) {
    const std::string all = fmt::format(R"({},transport="{}",direction="{}")", labels,
                                        escaped(latency.transport), latency.reads ? "read" : "write");
    std::uint64_t sum = 0;
    std::string lines;
    for (std::size_t i = 0; i < Latency::kBuckets; ++i) {
      sum += latency.counts[i];
      const bool last = i + 1 == Latency::kBuckets;
      const std::string bound =
          last ? "+Inf" : fmt::format("{}", std::chrono::duration<double>(Latency::bound(i)).count());
      fmt::format_to(std::back_inserter(lines), "{}_bucket{{{},le=\"{}\"}} {}\n", name, all, bound, sum);
    }
    if (sum == 0) return;
    text_ += lines;
    fmt::format_to(out(), "{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, all,
                   std::chrono::duration<double>(latency.sum).count(), name, all, sum);
  }

  const bool open_;
  std::string text_;
};

}  // namespace

std::string metrics_text(std::span<const MetricsOf> all, MetricsFormat format) {
  std::vector<Series> wholes;
  std::vector<Series> connections;
  for (const MetricsOf& listed : all) {
    const engine::Endpoint* const one = listed.endpoint;
    const std::string label = escaped(fmt::format("{} {}", one->address(), one->port()));
    wholes.push_back({fmt::format(R"(endpoint="{}")", label), "", one->stats(), one->latencies()});
    auto found = connections_of(*one, wholes.back().labels);
    wholes.back().connections = found.size();
    std::ranges::move(found, std::back_inserter(connections));
  }
  Page page(format);
  const auto of = [](const Metric& metric) {
    return [&metric](const Stats& stats) { return stats.*metric.value; };
  };
  for (const Metric& metric : kEndpointCounters) page.counter("endpoint", metric, wholes, of(metric));
  for (const Metric& metric : kCounters) {
    page.counter("endpoint", metric, wholes, of(metric));
    page.counter("connection", metric, connections, of(metric));
  }
  page.transport_bytes("endpoint", wholes);
  page.transport_bytes("connection", connections);
  page.histogram("endpoint", wholes);
  page.histogram("connection", connections);
  for (const Metric& metric : kEndpointGauges) {
    page.gauge(fmt::format("p2p_{}", metric.name), metric.help, wholes,
               [&](const Series& one) { return one.stats.*metric.value; });
  }
  page.gauge("p2p_connections", "Open connections.", wholes,
             [](const Series& one) { return one.connections; });
  page.gauge("p2p_transfers_under_way", "Transfers that have not ended.", connections,
             [](const Series& one) { return under_way(one.stats); });
  for (const Metric& metric : kConnectionGauges) {
    page.gauge(fmt::format("p2p_{}", metric.name), metric.help, connections,
               [&](const Series& one) { return one.stats.*metric.value; });
  }
  page.added(all, wholes);
  return std::move(page).end();
}

bool is_engine_metric(std::string_view name) {
  static const std::string page = metrics_text({}, MetricsFormat::kOpenMetrics);
  return page.find(fmt::format("# TYPE {} ", name)) != std::string::npos || name == "p2p_process_up";
}

}  // namespace p2p
