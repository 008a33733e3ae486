// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/handle.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/error.h"
#include "drivers/nccl_net/tcpx.h"
#include "drivers/nccl_net/tcpxo.h"

namespace p2p::nccl_net {
namespace {

// Where the fields of a handle of GPUDirect-TCPX lie.
constexpr std::size_t kAddress = 0;
constexpr std::size_t kFirstPort = 28;
constexpr std::size_t kPorts = 32;
constexpr std::size_t kSockets = 36;
constexpr std::size_t kThreads = 40;
constexpr std::size_t kRedirected = 44;
constexpr std::size_t kControl = 48;
constexpr std::size_t kPadding = 76;
constexpr std::size_t kState = 80;
constexpr std::size_t kStateBytes = 8;

// The same for a handle of FasTrak, whose first byte is a version.
constexpr std::byte kTcpxoVersion{1};
constexpr std::size_t kTcpxoAddress = 32;  // as text
constexpr std::size_t kTcpxoAddressBytes = 40;
constexpr std::size_t kTcpxoState = 88;

template <class T>
T field(const Handle& handle, std::size_t at) {
  T value;
  std::memcpy(&value, handle.data() + at, sizeof value);
  return value;
}

Status check_number(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return {};
  return fail(ErrorCode::kInvalidArgument, "a handle of GPUDirectTCPX with {} {}: {} to {} are possible",
              name, value, least, most);
}

Status check_address(const char* name, const Handle& handle, std::size_t at) {
  const auto family = field<sa_family_t>(handle, at);
  const auto port = ntohs(field<in_port_t>(handle, at + offsetof(sockaddr_in, sin_port)));
  if ((family == AF_INET || family == AF_INET6) && port != 0) return {};
  return fail(ErrorCode::kInvalidArgument, "a handle of GPUDirectTCPX whose {} has family {} and port {}",
              name, family, port);
}

/// What is checked of a handle of 3.1.9, one by one.
std::array<Status, 8> checks_of(const Handle& handle) {
  const auto number = [&](std::size_t at) { return field<std::int32_t>(handle, at); };
  const auto sockets = number(kSockets);
  const auto threads = number(kThreads);
  return {check_address("listening address", handle, kAddress),
          check_number("first port", number(kFirstPort), -1, 65535),
          check_number("number of ports", number(kPorts), -1, 65535),
          check_number("number of data sockets", sockets, 1, kTcpxMaxSockets),
          threads < 1 || threads > sockets
              ? check_number("number of threads", threads, 1, std::max(sockets, 1))
              : check_number("sockets left over by its threads", sockets % threads, 0, 0),
          check_number("redirect flag", number(kRedirected), 0, 1),
          number(kRedirected) == 1 ? check_address("control address", handle, kControl) : Status{},
          check_number("padding", number(kPadding), 0, 0)};
}

bool has_known_layout(const Handle& handle) {
  return std::ranges::all_of(checks_of(handle), [](const Status& check) { return check.has_value(); });
}

/// An address as text, with a zero behind it.
bool has_tcpxo_address(const Handle& handle) {
  const auto text = std::span(handle).subspan(kTcpxoAddress, kTcpxoAddressBytes);
  if (std::ranges::find(text, std::byte{}) == text.end()) return false;
  in6_addr address{};
  const auto* const chars = reinterpret_cast<const char*>(text.data());
  return ::inet_pton(AF_INET, chars, &address) == 1 || ::inet_pton(AF_INET6, chars, &address) == 1;
}

Status check_tcpxo_handle(const Handle& handle, const Handle& own) {
  if (own[0] != kTcpxoVersion) {
    return fail(ErrorCode::kUnavailable, "handles of FasTrak of version {}: version {} is what we know",
                std::to_integer<int>(own[0]), std::to_integer<int>(kTcpxoVersion));
  }
  if (handle[0] != own[0]) {
    return fail(ErrorCode::kInvalidArgument, "a handle of FasTrak of version {}, and ours are of version {}",
                std::to_integer<int>(handle[0]), std::to_integer<int>(own[0]));
  }
  if (has_tcpxo_address(handle)) return {};
  return fail(ErrorCode::kInvalidArgument, "a handle of FasTrak whose address is none");
}

}  // namespace

bool knows_handles_of(std::string_view plugin_name) {
  return is_tcpx(plugin_name) || is_tcpxo(plugin_name) || plugin_name == "softnet";
}

Handle handle_from_peer(Handle handle, const Handle& own, std::string_view plugin_name) {
  if (is_tcpxo(plugin_name)) std::ranges::fill(std::span(handle).subspan(kTcpxoState), std::byte{});
  if (!is_tcpx(plugin_name)) return handle;
  for (std::size_t at = kState; at != handle.size(); at += kStateBytes) {
    if (field<std::uint64_t>(own, at) != 0) continue;
    std::ranges::fill(std::span(handle).subspan(at, kStateBytes), std::byte{});
  }
  return handle;
}

std::vector<sockaddr_in6> own_addresses(const Handle& handle, std::string_view plugin_name) {
  std::vector<sockaddr_in6> addresses;
  if (!knows_handles_of(plugin_name) || is_tcpxo(plugin_name) || !has_known_layout(handle)) return addresses;
  addresses.push_back(field<sockaddr_in6>(handle, kAddress));
  if (field<std::int32_t>(handle, kRedirected) != 0) {
    addresses.push_back(field<sockaddr_in6>(handle, kControl));
  }
  return addresses;
}

Status check_handle(const Handle& handle, const Handle& own, std::string_view plugin_name) {
  if (is_tcpxo(plugin_name)) return check_tcpxo_handle(handle, own);
  if (!is_tcpx(plugin_name)) return {};
  const auto theirs = checks_of(handle);
  const auto ours = checks_of(own);
  for (std::size_t check = 0; check != theirs.size(); ++check) {
    if (ours[check] && !theirs[check]) return theirs[check];
  }
  return {};
}

}  // namespace p2p::nccl_net
