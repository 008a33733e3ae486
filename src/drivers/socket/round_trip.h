// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace p2p::socket {

/// The least time for a round trip that a TCP stream has seen lately; 0 if that is not known.
std::chrono::microseconds least_round_trip(int fd);

}  // namespace p2p::socket
