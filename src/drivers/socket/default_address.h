// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <optional>
#include <span>
#include <string>

#include "drivers/socket/address.h"
#include "drivers/socket/interfaces.h"
#include "p2p/result.h"

namespace p2p::socket {

/// What is asked of the address to announce.
struct AddressWish {
  /// Beginnings of interface names, comma-separated; `=` in front: whole names; `^`: all but these. Empty:
  /// any.
  std::string interfaces;

  /// A numeric address; interfaces of its network are preferred. Empty or not numeric: no preference.
  std::string near;

  int family = AF_UNSPEC;  ///< or AF_INET, AF_INET6: addresses of that alone
};

/// The numeric address by which other hosts most likely reach this one. Sends nothing.
/// kInvalidArgument, with the names that there are, if no interface is as wished.
Result<std::string> default_address(const AddressWish& wish);

/// The choice: of the interfaces as wished, the first that is InfiniBand (ib*), near, of the default route
/// (`routed` is its address), anything else, docker*, loopback; IPv4 before IPv6 among equals.
Result<Address> choose_address(const AddressWish& wish, std::span<const Interface> interfaces,
                               const std::optional<Address>& routed);

/// One address of each other interface as wished by which peers may reach this host, of the family of
/// `address`, which is one of its own: none of loopback, of a link alone, or of containers and virtual
/// machines. Empty if that is loopback.
std::vector<Address> choose_others(const AddressWish& wish, std::span<const Interface> interfaces,
                                   const Address& address);

}  // namespace p2p::socket
