// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "p2p/options.h"
#include "p2p/result.h"

namespace p2p::perf {

struct ServerPlan {
  Options options;
  std::string memory = "host";
  unsigned clients = 1;  ///< to serve before leaving; 0: serve until killed
};

/// Listens, says on standard output where ("listening on ADDRESS:PORT"), and serves clients one after
/// another. Fails if a client left without goodbye or wanted what could not be had.
Status run_server(const ServerPlan& plan);

}  // namespace p2p::perf
