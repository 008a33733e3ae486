// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/error.h"
#include "p2p/host_port.h"

namespace p2p::socket {
namespace {

const in_addr& ipv4(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in&>(storage).sin_addr;
}

const in6_addr& ipv6(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr;
}

/// The address in network order; empty for neither family.
std::span<const std::uint8_t> host_bytes(const sockaddr_storage& storage) {
  if (storage.ss_family == AF_INET) {
    return {reinterpret_cast<const std::uint8_t*>(&ipv4(storage)), sizeof(in_addr)};
  }
  if (storage.ss_family == AF_INET6) return ipv6(storage).s6_addr;
  return {};
}

}  // namespace

Result<Address> Address::parse(std::string_view text, std::uint16_t port) {
  const auto place = HostPort::parse(text);
  if (!place) return tl::unexpected(place.error());
  const auto chosen = place->port_or(port);
  if (!chosen) return tl::unexpected(chosen.error());
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(place->host.c_str(), nullptr, &hints, &found);
  if (failure != 0) {
    return fail(ErrorCode::kInvalidArgument, "'{}' is not a numeric address: {}", text,
                place->is_numeric() ? "its interface is none of this host, or it is no address of a link"
                                    : "it is a name");
  }
  Result<Address> address = from(found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  if (address) address->set_port(*chosen);
  return address;
}

Result<Address> Address::from(const sockaddr* address, socklen_t size) {
  const bool known = address != nullptr && ((address->sa_family == AF_INET && size >= sizeof(sockaddr_in)) ||
                                            (address->sa_family == AF_INET6 && size >= sizeof(sockaddr_in6)));
  if (!known) return fail(ErrorCode::kInvalidArgument, "an address that is neither IPv4 nor IPv6");
  Address result;
  result.size_ = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&result.storage_, address, result.size_);
  if (result.family() == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&ipv6(result.storage_))) result.unmap();
  return result;
}

void Address::unmap() {
  sockaddr_in plain{};
  plain.sin_family = AF_INET;
  plain.sin_port = reinterpret_cast<const sockaddr_in6&>(storage_).sin6_port;
  std::memcpy(&plain.sin_addr, &ipv6(storage_).s6_addr[12], sizeof plain.sin_addr);
  storage_ = {};
  size_ = sizeof plain;
  std::memcpy(&storage_, &plain, sizeof plain);
}

std::string Address::text() const {
  char host[INET6_ADDRSTRLEN + IF_NAMESIZE + 1] = "";
  if (::getnameinfo(raw(), size_, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return host;
}

std::uint16_t Address::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(storage_).sin_port);
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(storage_).sin6_port);
  return 0;
}

void Address::set_port(std::uint16_t port) {
  if (family() == AF_INET) reinterpret_cast<sockaddr_in&>(storage_).sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6&>(storage_).sin6_port = htons(port);
}

std::string Address::describe() const {
  return family() == AF_INET6 ? fmt::format("[{}]:{}", text(), port()) : fmt::format("{}:{}", text(), port());
}

bool Address::is_loopback() const {
  if (family() == AF_INET) return (ntohl(ipv4(storage_).s_addr) >> 24) == 127;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&ipv6(storage_));
}

bool Address::is_link_local() const { return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&ipv6(storage_)); }

bool Address::is_wildcard() const {
  if (family() == AF_INET) return ipv4(storage_).s_addr == htonl(INADDR_ANY);
  return family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&ipv6(storage_));
}

Status Address::check_scope() const {
  if (!is_link_local() || reinterpret_cast<const sockaddr_in6&>(storage_).sin6_scope_id != 0) return {};
  return fail(
      ErrorCode::kInvalidArgument,
      "{} is an address of one link alone and needs the name of this host's interface to it: {}%eth0, say",
      text(), text());
}

void Address::take_scope(const Address& other) {
  if (family() != AF_INET6 || other.family() != AF_INET6) return;
  reinterpret_cast<sockaddr_in6&>(storage_).sin6_scope_id =
      reinterpret_cast<const sockaddr_in6&>(other.storage_).sin6_scope_id;
}

bool Address::same_host(const Address& other) const {
  return same_network(other, static_cast<unsigned>(host_bytes(storage_).size()) * 8);
}

bool Address::same_network(const Address& other, unsigned prefix_bits) const {
  const auto mine = host_bytes(storage_);
  const auto theirs = host_bytes(other.storage_);
  if (mine.empty() || mine.size() != theirs.size()) return false;
  const std::size_t whole = std::min<std::size_t>(prefix_bits / 8, mine.size());
  if (!std::equal(mine.begin(), mine.begin() + static_cast<std::ptrdiff_t>(whole), theirs.begin()))
    return false;
  if (whole == mine.size() || prefix_bits % 8 == 0) return true;
  const unsigned shift = 8 - prefix_bits % 8;
  return mine[whole] >> shift == theirs[whole] >> shift;
}

}  // namespace p2p::socket
