// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "drivers/nccl_net/plugin.h"

namespace p2p::nccl_net {

/// The folder in sysfs of a PCI address ("0000:04:00.0"); empty if there is none.
std::string pci_path_of(const std::string& bus_id);

/// The devices whose PCI path shares most folders with the GPU's, which are those under the nearest common
/// switch. All of them if the GPU's place or theirs is unknown.
std::vector<Device> nearest(const std::vector<Device>& devices, const std::string& gpu_path);

}  // namespace p2p::nccl_net
