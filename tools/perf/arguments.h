// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "p2p/options.h"
#include "p2p/result.h"
#include "row.h"

namespace p2p::perf {

/// Port of `server` and `client` where none is given.
inline constexpr std::uint16_t kDefaultPort = 18731;

/// What stands on the command line, as text; the functions below make values of it.
struct Arguments {
  // Both sides.
  std::uint16_t port = kDefaultPort;
  std::string memory = "host";
  std::string key_file;

  // The server.
  std::string listen;
  bool persist = false;
  unsigned clients = 1;

  // The client.
  std::string host;
  std::string operations = "write";
  std::string sizes = "4K:64M";
  std::string transports;
  std::uint64_t blocks = 1;
  std::uint64_t depth = 8;
  unsigned streams = 0;
  double duration = 1.0;   ///< seconds
  std::int64_t pause = 0;  ///< milliseconds
  bool awake = false;
  bool verify = true;
  bool prepared = false;
  bool fresh = false;
  std::string priority = "normal";
  std::string rate;
  bool digest = false;
  std::string beside;
  std::string json;
};

void add_server_options(CLI::App& app, Arguments& arguments);

/// What `client` and `local` share: which rows, and where they are shown.
void add_row_options(CLI::App& app, Arguments& arguments);

void add_connection_options(CLI::App& app, Arguments& arguments);

/// The rows in the order in which they run: by transport, then operation, then size.
Result<std::vector<Row>> make_rows(const Arguments& arguments);

/// The engine's options from the environment and, over them, the arguments.
Result<Options> make_options(const Arguments& arguments);

}  // namespace p2p::perf
