// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "drivers/socket/address.h"
#include "p2p/result.h"

namespace p2p::socket {

using DialDeadline = std::chrono::steady_clock::time_point;

/// The addresses of a host, a name or numeric, with this port. Waits for as long as the system's resolver
/// does. kNotFound for a name that there is not, kUnavailable where the resolver could not say.
Result<std::vector<Address>> addresses_of(const std::string& host, std::uint16_t port);

/// The same, or kTimedOut from the deadline on. A thread that still waits for the resolver then is left to
/// itself.
Result<std::vector<Address>> addresses_of(const std::string& host, std::uint16_t port, DialDeadline deadline);

/// A stream to the first address of the host that takes one; why the last did not, or kTimedOut.
Result<UniqueFd> dial(const std::string& host, std::uint16_t port, DialDeadline deadline);

}  // namespace p2p::socket
