// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "arguments.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <random>

#include "failure.h"
#include "sizes.h"

namespace p2p::perf {

void add_connection_options(CLI::App& app, Arguments& arguments) {
  app.add_option("--port", arguments.port, "TCP port of the server; 0 lets the server's system choose")
      ->capture_default_str();
  app.add_option("--key-file", arguments.key_file, "file with pre-shared keys (default: UCCL_P2P_KEY_FILE)");
}

void add_server_options(CLI::App& app, Arguments& arguments) {
  add_connection_options(app, arguments);
  app.add_option("--listen", arguments.listen, "address to listen on (default: the engine's choice)");
  app.add_option(
         "--memory", arguments.memory,
         "host, shared (other containers map it), cuda:N, or mapped:N:MIB and private:N:MIB: chunks by "
         "cuMemMap, exportable or not")
      ->capture_default_str();
  app.add_option("--streams", arguments.streams, "most streams of a connection; 0: the engine's choice")
      ->capture_default_str();
  app.add_option("--clients", arguments.clients, "connections to serve before leaving")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_flag("--persist", arguments.persist, "serve until killed");
}

void add_row_options(CLI::App& app, Arguments& arguments) {
  app.add_option("--op", arguments.operations, "write, read, send, notify, or a list of them")
      ->capture_default_str();
  app.add_option("--size", arguments.sizes,
                 "bytes of a block: a size, a list, or a range of powers of two such as 4K:64M")
      ->capture_default_str();
  app.add_option("--blocks", arguments.blocks, "scattered blocks of each transfer, in shuffled order")
      ->capture_default_str();
  app.add_option("--depth", arguments.depth, "transfers in flight")->capture_default_str();
  app.add_option("--streams", arguments.streams,
                 "streams of the connection, at most the server's; 0: the engine's choice")
      ->capture_default_str();
  app.add_option("--transport", arguments.transports, "transport, or a list (default: the engine's choice)");
  app.add_option("--duration", arguments.duration, "seconds for each row")->capture_default_str();
  app.add_option("--pause", arguments.pause,
                 "milliseconds before each of the first ten transfers, to see what sleeping devices cost")
      ->capture_default_str();
  app.add_flag("--awake", arguments.awake,
               "copy other memory until each row's first transfer, to see what registration alone costs it")
      ->excludes("--pause");
  app.add_option(
         "--memory", arguments.memory,
         "host, shared (other containers map it), cuda:N, or mapped:N:MIB and private:N:MIB: chunks by "
         "cuMemMap, exportable or not")
      ->capture_default_str();
  app.add_flag("--verify,!--no-verify", arguments.verify,
               "check all bytes at the destination after each row (on unless --no-verify)");
  auto* const prepared = app.add_flag("--prepared", arguments.prepared,
                                      "post lists that were prepared once (default with --blocks over 1)");
  app.add_flag("--fresh", arguments.fresh, "give the list of blocks anew with each transfer")
      ->excludes(prepared);
  app.add_option("--priority", arguments.priority, "high, normal or low: who goes first on the connection")
      ->capture_default_str();
  app.add_option("--rate", arguments.rate, "bytes a second of each transfer at most, such as 100M");
  app.add_flag("--digest", arguments.digest,
               "have each write and read verified by digests before it is done");
  app.add_option("--beside", arguments.beside,
                 "size of bulk transfers of low priority beside all, such as 64M (default: none)");
  app.add_option("--json", arguments.json, "file for one JSON object a row; - is standard output");
}

Result<std::vector<Row>> make_rows(const Arguments& arguments) {
  const auto sizes = parse_sizes(arguments.sizes);
  if (!sizes) return tl::unexpected(sizes.error());
  std::vector<std::string> transports = split_list(arguments.transports);
  if (transports.empty()) transports.emplace_back();
  Row row;
  row.streams = arguments.streams;
  row.blocks = arguments.blocks;
  row.depth = arguments.depth;
  row.duration = std::chrono::milliseconds(static_cast<std::int64_t>(arguments.duration * 1000));
  row.pause = std::chrono::milliseconds(arguments.pause);
  row.awake = arguments.awake;
  row.verify = arguments.verify;
  row.prepared = arguments.prepared || (arguments.blocks > 1 && !arguments.fresh);
  row.seed = std::random_device{}();
  const auto priority = parse_priority(arguments.priority);
  if (!priority) return tl::unexpected(priority.error());
  row.priority = *priority;
  row.digest = arguments.digest;
  for (const auto& [text, value] :
       {std::pair(&arguments.rate, &row.rate), {&arguments.beside, &row.beside}}) {
    if (text->empty()) continue;
    const auto bytes = parse_size(*text);
    if (!bytes) return tl::unexpected(bytes.error());
    *value = *bytes;
  }
  std::vector<Row> rows;
  for (const std::string& transport : transports) {
    row.transport = transport;
    for (const std::string& name : split_list(arguments.operations)) {
      const auto operation = parse_operation(name);
      if (!operation) return tl::unexpected(operation.error());
      row.operation = *operation;
      for (const std::uint64_t size : *sizes) {
        row.size = size;
        ++row.seed;
        if (const Status good = check(row); !good) return tl::unexpected(good.error());
        rows.push_back(row);
      }
    }
  }
  if (rows.empty()) return fail(ErrorCode::kInvalidArgument, "--op names no operation");
  return rows;
}

Result<Options> make_options(const Arguments& arguments) {
  auto options = Options::from_environment();
  if (!options) return options;
  if (!arguments.key_file.empty()) options->key_file = arguments.key_file;
  return options;
}

}  // namespace p2p::perf
