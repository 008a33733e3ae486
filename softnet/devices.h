// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>

#include <string>
#include <vector>

#include "softnet/settings.h"

namespace softnet {

/// A network interface with an address.
struct Device {
  std::string name;
  std::string pci_path;    ///< empty: not on a PCI bus
  int speed = 10000;       ///< Mbit/s; of links that do not say, as NCCL's own socket plugin takes it
  int mtu = 1500;          ///< bytes
  sockaddr_in6 address{};  ///< or a sockaddr_in, by its family; port 0
};

/// Those that the settings name, or all that are up; sorted by name.
std::vector<Device> find_devices(const Settings& settings);

}  // namespace softnet
