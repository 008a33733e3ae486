// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "p2p/options.h"
#include "p2p/result.h"
#include "report.h"
#include "row.h"

namespace p2p::perf {

struct LocalPlan {
  Options options;
  std::string memory = "host";
  std::string key_file;
  std::vector<Row> rows;
  bool compare = false;  ///< with what the machine does without an engine
};

/// The rows that show what the engine does on one machine, in less than half a minute.
std::vector<Row> demo_rows();

/// Runs a server as a process of its own and the rows against it. False if any row failed.
Result<bool> run_local(const LocalPlan& plan, Report& report);

}  // namespace p2p::perf
