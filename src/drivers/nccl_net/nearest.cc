// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/nearest.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>

namespace p2p::nccl_net {
namespace {

std::ptrdiff_t common_folders(const std::string& one, const std::string& other) {
  const std::filesystem::path left(one);
  const std::filesystem::path right(other);
  return std::distance(left.begin(),
                       std::mismatch(left.begin(), left.end(), right.begin(), right.end()).first);
}

}  // namespace

std::string pci_path_of(const std::string& bus_id) {
  std::error_code error;
  const auto path = std::filesystem::canonical("/sys/bus/pci/devices/" + bus_id, error);
  return error ? "" : path.string();
}

std::vector<Device> nearest(const std::vector<Device>& devices, const std::string& gpu_path) {
  std::vector<Device> found;
  std::ptrdiff_t most = 0;
  for (const Device& device : devices) {
    const std::string& path = device.properties.pci_path;
    if (gpu_path.empty() || path.empty()) return devices;
    const std::ptrdiff_t common = common_folders(path, gpu_path);
    if (common < most) continue;
    if (common > most) found.clear();
    most = common;
    found.push_back(device);
  }
  return found;
}

}  // namespace p2p::nccl_net
