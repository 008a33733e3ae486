// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/default_address.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/unique_fd.h"
#include "drivers/socket/socket.h"

namespace p2p::socket {
namespace {

bool is_wished(std::string_view name, std::string_view wish) {
  const bool excluded = wish.starts_with('^');
  if (excluded) wish.remove_prefix(1);
  const bool whole = wish.starts_with('=');
  if (whole) wish.remove_prefix(1);
  bool listed = false;
  while (!wish.empty()) {
    const std::string_view word = wish.substr(0, wish.find(','));
    wish.remove_prefix(std::min(wish.size(), word.size() + 1));
    if (word.empty()) continue;
    listed = listed || (whole ? name == word : name.starts_with(word));
  }
  return listed != excluded;
}

enum class Kind { kInfiniBand, kNear, kRouted, kOther, kDocker, kLoopback };

/// The source address of the default route, IPv4 before IPv6.
std::optional<Address> routed_address() {
  // Addresses kept for documentation (RFC 5737, RFC 3849): only the default route leads there, and
  // connecting a datagram socket asks the routing table without sending.
  for (const char* const far : {"192.0.2.1", "2001:db8::1"}) {
    const auto remote = Address::parse(far, 9);
    if (!remote) continue;
    const UniqueFd probe = UniqueFd::of(::socket, remote->family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (!probe || ::connect(probe.get(), remote->raw(), remote->raw_size()) != 0) continue;
    if (const auto local = local_address(probe.get())) return *local;
  }
  return std::nullopt;
}

/// Its addresses lead to this host's own guests, and often are the same on every host.
bool is_of_guests(std::string_view name) {
  constexpr std::array<std::string_view, 13> kBeginnings{"docker", "br-",    "veth",     "virbr", "cni",
                                                         "cali",   "cilium", "lxc",      "tunl",  "flannel",
                                                         "kube-",  "podman", "nodelocal"};
  return std::ranges::any_of(kBeginnings, [&](std::string_view one) { return name.starts_with(one); });
}

}  // namespace

std::vector<Address> choose_others(const AddressWish& wish, std::span<const Interface> interfaces,
                                   const Address& address) {
  if (address.is_loopback() || address.is_link_local()) return {};
  std::vector<std::string_view> passed;
  for (const Interface& one : interfaces) {
    if (one.address.same_host(address)) passed.push_back(one.name);
  }
  std::vector<Address> others;
  for (const Interface& one : interfaces) {
    const bool wished = wish.interfaces.empty() || is_wished(one.name, wish.interfaces);
    const bool leads_here = !one.loopback && !one.address.is_link_local() && !is_of_guests(one.name);
    if (!wished || !leads_here || one.address.family() != address.family()) continue;
    if (std::ranges::find(passed, one.name) != passed.end()) continue;
    passed.push_back(one.name);
    others.push_back(one.address);
  }
  return others;
}

Result<Address> choose_address(const AddressWish& wish, std::span<const Interface> interfaces,
                               const std::optional<Address>& routed) {
  const auto near = wish.near.empty()
                        ? Result<Address>(fail(ErrorCode::kNotFound, "no address is wished near"))
                        : Address::parse(wish.near, 0);
  const auto kind_of = [&](const Interface& one) {
    if (one.loopback) return Kind::kLoopback;
    if (one.name.starts_with("docker")) return Kind::kDocker;
    if (one.name.starts_with("ib")) return Kind::kInfiniBand;
    if (near && one.address.same_network(*near, one.prefix_bits)) return Kind::kNear;
    return routed && one.address.same_host(*routed) ? Kind::kRouted : Kind::kOther;
  };
  const Interface* best = nullptr;
  std::pair<Kind, bool> best_rank;
  std::string names;
  for (const Interface& one : interfaces) {
    if (one.address.is_link_local()) continue;  // means nothing to other hosts
    if (wish.family != AF_UNSPEC && one.address.family() != wish.family) continue;
    names += (names.empty() ? "" : ", ") + one.name;
    if (!wish.interfaces.empty() && !is_wished(one.name, wish.interfaces)) continue;
    const std::pair rank{kind_of(one), one.address.family() != AF_INET};
    if (best == nullptr || rank < best_rank) {
      best = &one;
      best_rank = rank;
    }
  }
  if (best != nullptr) return best->address;
  const std::string_view family = wish.family == AF_INET    ? " of IPv4"
                                  : wish.family == AF_INET6 ? " of IPv6"
                                                            : "";
  return fail(ErrorCode::kInvalidArgument,
              "find an address{} to announce: no interface that is up matches \"{}\" (there are: {})", family,
              wish.interfaces, names);
}

Result<std::string> default_address(const AddressWish& wish) {
  const auto found = interfaces();
  if (!found) return tl::unexpected(found.error());
  return choose_address(wish, *found, routed_address()).map([](const Address& one) { return one.text(); });
}

}  // namespace p2p::socket
