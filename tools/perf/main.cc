// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>

#include "arguments.h"
#include "baseline.h"
#include "client.h"
#include "failure.h"
#include "local.h"
#include "p2p/host_port.h"
#include "report.h"
#include "server.h"

namespace {

using namespace p2p::perf;
using p2p::HostPort;
using p2p::Result;
using p2p::Status;

Result<bool> serve(const Arguments& arguments) {
  auto options = make_options(arguments);
  if (!options) return tl::unexpected(options.error());
  const auto place = HostPort::parse(arguments.listen);
  const bool has_port = place && place->port && arguments.port == kDefaultPort;
  options->port = has_port ? *place->port : arguments.port;
  if (arguments.streams != 0) options->streams = arguments.streams;
  if (!arguments.listen.empty()) options->listen_address = arguments.listen;
  const Status served = run_server({*options, arguments.memory, arguments.persist ? 0 : arguments.clients});
  if (!served) return tl::unexpected(served.error());
  return true;
}

Result<bool> measure_remote(const Arguments& arguments) {
  const auto options = make_options(arguments);
  if (!options) return tl::unexpected(options.error());
  const auto rows = make_rows(arguments);
  if (!rows) return tl::unexpected(rows.error());
  auto report = Report::open(arguments.json);
  if (!report) return tl::unexpected(report.error());
  const auto place = HostPort::parse(arguments.host);
  if (!place) return tl::unexpected(place.error());
  const std::uint16_t port =
      arguments.port == kDefaultPort ? place->port.value_or(kDefaultPort) : arguments.port;
  const ClientPlan plan{*options, arguments.host, port, arguments.memory, *rows};
  const bool good = run_client(plan, *report);
  report->finish();
  return good;
}

Result<bool> measure_local(const Arguments& arguments, bool demo) {
  const auto options = make_options(arguments);
  if (!options) return tl::unexpected(options.error());
  const auto rows = demo ? Result<std::vector<Row>>(demo_rows()) : make_rows(arguments);
  if (!rows) return tl::unexpected(rows.error());
  auto report = Report::open(arguments.json);
  if (!report) return tl::unexpected(report.error());
  const auto good = run_local({*options, arguments.memory, arguments.key_file, *rows, demo}, *report);
  report->finish();
  return good;
}

Result<bool> measure_machine(const Arguments& arguments) {
  const Status measured = run_baseline(arguments.json);
  if (!measured) return tl::unexpected(measured.error());
  return true;
}

/// The Python package answers this one itself, so that it comes here from a p2p-perf without it.
Result<bool> refer_to_python() {
  return p2p::perf::fail(
      p2p::ErrorCode::kUnavailable,
      "report: the Python package makes the page (pip install '.[report]' where this project's "
      "sources are): `p2p-perf report` there, or `python -m uccl.report`");
}

/// True if an option that chooses rows was given.
bool chose_rows(const CLI::App& app) {
  for (const char* name :
       {"--op", "--size", "--blocks", "--depth", "--streams", "--transport", "--duration", "--pause",
        "--awake", "--verify", "--prepared", "--fresh", "--priority", "--rate", "--digest", "--beside"}) {
    if (app.count(name) != 0) return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Measures the transfer engine between two processes, on one machine or two."};
  app.require_subcommand(1);
  Arguments arguments;
  auto* const server = app.add_subcommand("server", "serve clients");
  add_server_options(*server, arguments);
  auto* const client = app.add_subcommand("client", "measure against a server");
  client->add_option("host", arguments.host, "name or address of the server")->required();
  add_connection_options(*client, arguments);
  add_row_options(*client, arguments);
  auto* const local = app.add_subcommand(
      "local", "measure between two processes of this machine; without options, a tour of it");
  local->add_option("--key-file", arguments.key_file, "file with pre-shared keys");
  add_row_options(*local, arguments);
  auto* const baseline =
      app.add_subcommand("baseline", "measure raw sockets and copies on this machine, without the engine");
  baseline->add_option("--json", arguments.json, "file for one JSON object a figure; - is standard output");
  auto* const report = app.add_subcommand(
      "report", "make a page of tables and plots of what --json wrote: the Python package's command");
  report->prefix_command();
  CLI11_PARSE(app, argc, argv);

  const auto good = server->parsed()   ? serve(arguments)
                    : client->parsed() ? measure_remote(arguments)
                    : report->parsed() ? refer_to_python()
                    : local->parsed()  ? measure_local(arguments, !chose_rows(*local))
                                       : measure_machine(arguments);
  if (!good)
    fmt::print(stderr, "p2p-perf: {}: {}\n", p2p::to_string(good.error().code), good.error().message);
  return good && *good ? 0 : 1;
}
