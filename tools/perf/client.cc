// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "client.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <utility>

#include "buffer.h"
#include "exchange.h"
#include "failure.h"
#include "measure.h"
#include "sizes.h"

namespace p2p::perf {
namespace {

constexpr std::chrono::seconds kClose{5};

bool same_connection(const Row& a, const Row& b) {
  return a.transport == b.transport && a.streams == b.streams;
}

/// The end of the first run of rows that share a connection.
std::size_t group_size(std::span<const Row> rows) {
  std::size_t size = 1;
  while (size < rows.size() && same_connection(rows[0], rows[size])) ++size;
  return size;
}

std::string describe(const Row& row) {
  return fmt::format("{} {} x {}{}{}", to_string(row.operation), row.blocks, format_size(row.size),
                     row.transport.empty() ? "" : " over ", row.transport);
}

/// The route that the row's memory took: not always that of all memory of its kind.
Route route_of(const Connection& connection, MemoryKind local, const Figures& figures) {
  for (Route& route : connection.routes()) {
    if (route.local == local && route.remote == figures.remote &&
        route.transport == figures.taken.transport) {
      return std::move(route);
    }
  }
  Route route{.local = local,
              .remote = figures.remote,
              .transport = figures.taken.transport,
              .reason = "the best that works for this memory",
              .detail = figures.taken.detail,
              .history = {}};
  for (const auto& passed : figures.taken.passed) {
    route.reason += fmt::format("; before it {}: {}", passed.transport, passed.reason);
  }
  return route;
}

/// Measures rows over one connection. False if any failed.
bool run_group(const ClientPlan& plan, std::span<const Row> rows, Report& report) {
  const auto fail_all = [&](const Error& error) {
    for (const Row& row : rows) report.failed(describe(row), error);
    return false;
  };
  Options options = plan.options;
  if (!rows[0].transport.empty()) options.transports = {rows[0].transport};
  if (rows[0].streams != 0) options.streams = rows[0].streams;
  auto endpoint = Endpoint::create(options);
  if (!endpoint) return fail_all(endpoint.error());
  const auto first = place_endpoint(*endpoint, plan.memory);
  if (!first) return fail_all(first.error());
  auto connection = endpoint->connect(plan.host, plan.port);
  if (!connection) return fail_all(connection.error());

  Exchange exchange(*connection);
  const MemoryKind local =
      plan.memory == "host" || plan.memory == kSharedMemory ? MemoryKind::kHost : MemoryKind::kCuda;
  bool good = true;
  for (const Row& row : rows) {
    report.begin(describe(row));
    auto figures = measure(*endpoint, plan.memory, *first, exchange, row);
    if (!figures) {
      report.failed(describe(row), figures.error());
      good = false;
      // Where the two sides stand is not known any more.
      if (!connection->status()) return false;
      continue;
    }
    report.route(route_of(*connection, local, *figures));
    figures->stats = connection->stats();
    report.row(row, *figures);
    if (row.verify && !figures->verified) {
      report.failed(describe(row), Error{ErrorCode::kProtocol, figures->fault});
      good = false;
    }
  }
  report.history(connection->routes().front());
  if (const auto bye = exchange.call({.request = Request::kBye}); !bye) return fail_all(bye.error());
  const Status closed = connection->close(kClose);
  if (!closed) report.failed("close", closed.error());
  return good && closed.has_value();
}

}  // namespace

unsigned count_connections(const std::vector<Row>& rows) {
  unsigned count = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || !same_connection(rows[i - 1], rows[i])) ++count;
  }
  return count;
}

bool run_client(const ClientPlan& plan, Report& report) {
  bool good = true;
  for (std::span<const Row> left(plan.rows); !left.empty();) {
    const std::size_t size = group_size(left);
    good = run_group(plan, left.first(size), report) && good;
    left = left.subspan(size);
  }
  return good;
}

}  // namespace p2p::perf
