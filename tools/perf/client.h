// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "p2p/options.h"
#include "p2p/result.h"
#include "report.h"
#include "row.h"

namespace p2p::perf {

struct ClientPlan {
  Options options;
  std::string host;
  std::uint16_t port = 0;
  std::string memory = "host";
  std::vector<Row> rows;
};

/// Rows next to each other that share a connection: those of one transport and number of streams.
unsigned count_connections(const std::vector<Row>& rows);

/// Measures all rows against a server and reports each. Goes on after a row that failed; answers false if
/// any did or was not verified though it should have been.
bool run_client(const ClientPlan& plan, Report& report);

}  // namespace p2p::perf
