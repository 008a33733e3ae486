// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "drivers/socket/address.h"
#include "p2p/result.h"

namespace p2p::socket {

/// One address of one interface that is up.
struct Interface {
  std::string name;  ///< "eth0"
  Address address;
  bool loopback = false;
  unsigned prefix_bits = 0;  ///< of the address, how many name the network
};

/// In the system's order.
Result<std::vector<Interface>> interfaces();

/// True if `address` is one of this host's (of this network namespace), the loopback range included.
bool is_local(const Address& address);

/// Megabits per second as the driver tells, 0 where it does not.
unsigned link_speed(std::string_view interface_name);

}  // namespace p2p::socket
