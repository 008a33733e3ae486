// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/interfaces.h"

#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/unique_fd.h"

namespace p2p::socket {
namespace {

unsigned count_bits(const sockaddr* mask) {
  if (mask == nullptr) return 0;
  if (mask->sa_family == AF_INET) {
    return static_cast<unsigned>(std::popcount(reinterpret_cast<const sockaddr_in*>(mask)->sin_addr.s_addr));
  }
  unsigned bits = 0;
  if (mask->sa_family == AF_INET6) {
    for (const auto byte : reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr.s6_addr) {
      bits += static_cast<unsigned>(std::popcount(byte));
    }
  }
  return bits;
}

}  // namespace

Result<std::vector<Interface>> interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return tl::unexpected(system_error("list the network interfaces"));
  std::vector<Interface> found;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const socklen_t size = entry->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    Result<Address> address = Address::from(entry->ifa_addr, size);
    if (!address) continue;  // of another family
    found.push_back(
        {entry->ifa_name, *address, (entry->ifa_flags & IFF_LOOPBACK) != 0, count_bits(entry->ifa_netmask)});
  }
  ::freeifaddrs(first);
  return found;
}

bool is_local(const Address& address) {
  if (address.is_loopback()) return true;
  const Result<std::vector<Interface>> mine = interfaces();
  return mine && std::any_of(mine->begin(), mine->end(), [&](const Interface& candidate) {
           return candidate.address.same_host(address);
         });
}

namespace {

/// The pairs that join containers, and tunnels, name a speed that limits nothing: 10 Gb/s, or 10 Mb/s.
bool makes_up_its_speed(std::string_view interface_name) {
  const UniqueFd any = UniqueFd::of(::socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ethtool_drvinfo info{};
  info.cmd = ETHTOOL_GDRVINFO;
  ifreq request{};
  interface_name.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&info);
  if (!any || ::ioctl(any.get(), SIOCETHTOOL, &request) != 0) return false;
  const std::string_view driver(info.driver, ::strnlen(info.driver, sizeof info.driver));
  return driver == "veth" || driver == "tun";
}

}  // namespace

unsigned link_speed(std::string_view interface_name) {
  // A name with a slash would leave the folder.
  if (interface_name.empty() || interface_name.find('/') != std::string_view::npos) return 0;
  std::ifstream file(fmt::format("/sys/class/net/{}/speed", interface_name));
  long speed = 0;
  // Virtual devices answer -1 or an error.
  if (!(file >> speed) || speed <= 0 || makes_up_its_speed(interface_name)) return 0;
  return static_cast<unsigned>(speed);
}

}  // namespace p2p::socket
