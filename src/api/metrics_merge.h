// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>

#include "drivers/http/server.h"

namespace p2p {

/// What one process says for itself.
struct ProcessReply {
  std::string process;               ///< its number
  std::optional<http::Reply> reply;  ///< none: it has not answered in time
};

/// The replies of processes to one request for metrics, of one format, as one page: each series with the
/// label `process`, and `p2p_process_up`. Processes of one number, as of several PID namespaces, are numbered
/// on.
http::Reply merge_metrics(std::span<ProcessReply> replies);

/// The replies to a request for health: good if all are.
http::Reply merge_health(std::span<ProcessReply> replies);

}  // namespace p2p
