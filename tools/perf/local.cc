// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "local.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <string_view>

#include "baseline.h"
#include "child.h"
#include "client.h"
#include "failure.h"
#include "p2p/host_port.h"
#include "sizes.h"

namespace p2p::perf {
namespace {

constexpr std::chrono::seconds kStart{20};
constexpr std::chrono::seconds kEnd{20};
constexpr std::string_view kListening = "listening on ";

struct Address {
  std::string host;
  std::uint16_t port = 0;
};

Result<Address> parse_announcement(const std::string& line) {
  const bool listens = line.starts_with(kListening);
  const auto place = HostPort::parse(listens ? std::string_view(line).substr(kListening.size()) : "");
  if (!place || place->port.value_or(0) == 0) {
    return fail(ErrorCode::kProtocol, "the server said \"{}\" instead of where it listens", line);
  }
  return Address{place->host, *place->port};
}

/// A comparison of a row with a baseline figure, if both are there.
struct Comparison {
  std::string_view baseline;
  Operation operation;
  std::string_view transport;
  std::uint64_t size;
  std::uint64_t blocks;
  bool latency = false;
};

constexpr std::uint64_t kLarge = std::uint64_t{64} << 20;
constexpr Comparison kComparisons[] = {
    {kTcpStream, Operation::kWrite, "tcp", kLarge, 1},
    {kTcpStream, Operation::kRead, "tcp", kLarge, 1},
    {kTcpBlocks4K, Operation::kWrite, "tcp", 4096, 8192},
    {kTcpBlocks16K, Operation::kWrite, "tcp", 16384, 4096},
    {kTcpRoundTrip, Operation::kWrite, "tcp", 4096, 1, true},
    {kProcessCopy, Operation::kWrite, "cma", kLarge, 1},
    {kProcessCopy, Operation::kRead, "cma", kLarge, 1},
    {kProcessCopyBlocks, Operation::kWrite, "cma", 4096, 8192},
};

void show_ratio(const Comparison& comparison, const Baseline& baseline, const Report& report) {
  for (const auto& [row, figures] : report.rows()) {
    if (row.operation != comparison.operation || figures.taken.transport != comparison.transport ||
        row.size != comparison.size || row.blocks != comparison.blocks) {
      continue;
    }
    const double value = comparison.latency ? figures.latency_us_p50 : figures.gbytes_per_second(row);
    fmt::print(report.table(), "  {:5} {} x {:4} over {}: {:.2f} of it\n", to_string(row.operation),
               row.blocks, format_size(row.size), figures.taken.transport, value / baseline.value);
    return;
  }
}

Status show_baselines(Report& report) {
  report.begin("baseline");
  const auto baselines = baselines_of_child();
  if (!baselines) return tl::unexpected(baselines.error());
  report.finish();
  fmt::print(report.table(), "\nwithout an engine, on this machine, now:\n");
  for (const Baseline& baseline : *baselines) {
    report.baseline(baseline);
    if (baseline.value <= 0) continue;
    for (const Comparison& comparison : kComparisons) {
      if (comparison.baseline == baseline.name) show_ratio(comparison, baseline, report);
    }
  }
  return {};
}

}  // namespace

std::vector<Row> demo_rows() {
  struct Shape {
    Operation operation;
    std::uint64_t size;
    std::uint64_t blocks;
    std::uint64_t depth;
  };
  constexpr Shape kShapes[] = {
      {Operation::kWrite, 4096, 1, 1},     {Operation::kWrite, std::uint64_t{64} << 10, 1, 8},
      {Operation::kWrite, 1u << 20, 1, 8}, {Operation::kWrite, kLarge, 1, 2},
      {Operation::kRead, kLarge, 1, 2},    {Operation::kWrite, 4096, 8192, 2},
      {Operation::kWrite, 16384, 4096, 2}, {Operation::kSend, 4096, 1, 1},
      {Operation::kSend, 64, 1, 64},       {Operation::kNotify, 64, 1, 64},
  };
  std::vector<Row> rows;
  std::uint64_t seed = std::random_device{}();
  for (const char* transport : {"cma", "tcp"}) {
    for (const Shape& shape : kShapes) {
      Row row;
      row.operation = shape.operation;
      row.transport = transport;
      row.size = shape.size;
      row.blocks = shape.blocks;
      row.depth = shape.depth;
      row.prepared = shape.blocks > 1;
      row.seed = seed++;
      rows.push_back(row);
    }
  }
  return rows;
}

Result<bool> run_local(const LocalPlan& plan, Report& report) {
  std::vector<std::string> arguments{"server",    "--listen",  "127.0.0.1",
                                     "--port",    "0",         "--memory",
                                     plan.memory, "--clients", std::to_string(count_connections(plan.rows))};
  if (!plan.key_file.empty()) arguments.insert(arguments.end(), {"--key-file", plan.key_file});
  const auto streams = [](const Row& a, const Row& b) { return a.streams < b.streams; };
  const auto most = std::max_element(plan.rows.begin(), plan.rows.end(), streams);
  if (most != plan.rows.end()) {
    arguments.insert(arguments.end(), {"--streams", std::to_string(most->streams)});
  }
  auto server = Child::run_self(arguments);
  if (!server) return tl::unexpected(server.error());
  const auto line = server->read_line(kStart);
  if (!line) return tl::unexpected(line.error());
  const auto address = parse_announcement(*line);
  if (!address) return tl::unexpected(address.error());

  ClientPlan client{plan.options, address->host, address->port, plan.memory, plan.rows};
  client.options.listen_address = "127.0.0.1";
  const bool good = run_client(client, report);
  if (good) {
    // After a failure the server may wait for clients that do not come; its end as a child stops it.
    const auto status = server->wait(kEnd);
    if (!status) return tl::unexpected(status.error());
    if (*status != 0) return fail(ErrorCode::kSystem, "the server ended with status {}", *status);
  }
  if (plan.compare) {
    if (const Status shown = show_baselines(report); !shown) return tl::unexpected(shown.error());
  }
  return good;
}

}  // namespace p2p::perf
