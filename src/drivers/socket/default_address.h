// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace p2p::socket {

/// The numeric address by which other hosts most likely reach this one: the source address of the default
/// route (IPv4, then IPv6), else 127.0.0.1. Sends nothing.
std::string default_address();

}  // namespace p2p::socket
