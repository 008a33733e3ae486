// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "softnet/devices.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

namespace softnet {
namespace {

constexpr std::size_t kMaxDevices = 16;

std::string real_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr), &std::free);
  return resolved ? resolved.get() : "";
}

// Mbit/s. No link bounds it: as fast as memory.
constexpr int kLoopbackSpeed = 1'000'000;

Device describe(const ifaddrs& entry, const Settings& settings) {
  Device device;
  device.name = entry.ifa_name;
  const std::string folder = "/sys/class/net/" + device.name;
  device.pci_path = settings.pci_path.empty() ? real_path(folder + "/device") : settings.pci_path;
  if (settings.habits.no_pci_path) device.pci_path.clear();
  std::ifstream file(folder + "/speed");
  int speed = 0;
  if (file >> speed && speed > 0) device.speed = speed;
  if ((entry.ifa_flags & IFF_LOOPBACK) != 0) device.speed = kLoopbackSpeed;
  std::ifstream mtu_file(folder + "/mtu");
  int mtu = 0;
  if (mtu_file >> mtu && mtu > 0) device.mtu = mtu;
  const bool v6 = entry.ifa_addr->sa_family == AF_INET6;
  std::memcpy(&device.address, entry.ifa_addr, v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  device.address.sin6_port = 0;
  return device;
}

/// IPv4, or IPv6 that needs no scope.
bool has_usable_address(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) return false;
  if (entry.ifa_addr->sa_family == AF_INET) return true;
  if (entry.ifa_addr->sa_family != AF_INET6) return false;
  sockaddr_in6 address;
  std::memcpy(&address, entry.ifa_addr, sizeof address);
  return !IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr);
}

}  // namespace

std::vector<Device> find_devices(const Settings& settings) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);

  std::vector<Device> named;
  std::vector<Device> loopback;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (!has_usable_address(*entry)) continue;
    const bool listed = std::ranges::find(settings.interfaces, entry->ifa_name) != settings.interfaces.end();
    if (!settings.interfaces.empty() && !listed) continue;
    const bool last_resort = settings.interfaces.empty() && (entry->ifa_flags & IFF_LOOPBACK) != 0;
    (last_resort ? loopback : named).push_back(describe(*entry, settings));
  }
  std::vector<Device> devices = named.empty() ? loopback : named;

  // One entry an interface: its IPv4 address if it has one, else always the same of its IPv6 addresses.
  std::ranges::sort(devices, [](const Device& a, const Device& b) {
    if (a.name != b.name) return a.name < b.name;
    const bool a_first = a.address.sin6_family == AF_INET;
    const bool b_first = b.address.sin6_family == AF_INET;
    if (a_first != b_first) return a_first;
    return std::memcmp(&a.address, &b.address, sizeof a.address) < 0;
  });
  const auto rest = std::ranges::unique(devices, {}, &Device::name);
  devices.erase(rest.begin(), rest.end());
  if (devices.size() > kMaxDevices) devices.resize(kMaxDevices);
  return devices;
}

}  // namespace softnet
