// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "p2p/api.h"
#include "p2p/endpoint.h"

namespace p2p {

/// The counters of an endpoint and of each of its connections as OpenMetrics text, for Prometheus and the
/// like. Connections are told apart by their id and the peer's address; the endpoint's own counters keep what
/// connections that have ended did. Costs some microseconds a connection, and up to half a second where
/// functions of `Endpoint::add_metrics` are late.
P2P_API std::string openmetrics(const Endpoint& endpoint);

}  // namespace p2p
