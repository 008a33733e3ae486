// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <bit>
#include <fstream>

#include "base/error.h"

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

unsigned link_speed(std::string_view interface_name) {
  // A name with a slash would leave the folder.
  if (interface_name.empty() || interface_name.find('/') != std::string_view::npos) return 0;
  std::ifstream file(fmt::format("/sys/class/net/{}/speed", interface_name));
  long speed = 0;
  // Virtual devices answer -1 or an error.
  return file >> speed && speed > 0 ? static_cast<unsigned>(speed) : 0;
}

}  // namespace p2p::socket
