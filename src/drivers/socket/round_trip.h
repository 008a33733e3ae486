// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace p2p::socket {

/// The least time for a round trip that a TCP stream has seen lately; 0 if that is not known.
std::chrono::microseconds least_round_trip(int fd);

/// Bytes that a TCP stream may have on its way, by its congestion window; 0 if that is not known.
std::uint64_t bytes_on_path(int fd);

}  // namespace p2p::socket
