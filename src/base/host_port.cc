// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/host_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace p2p {
namespace {

constexpr std::size_t kLongestName = 253;

// A name whose last part is a number would be taken for an address by the system, in forms of its own: "10.7"
// for 10.0.0.7, "010" for 8.
bool ends_with_number(std::string_view host) {
  const std::string_view last = host.substr(host.rfind('.') + 1);
  return last.starts_with("0x") ||
         (!last.empty() && last.find_first_not_of("0123456789") == std::string_view::npos);
}

bool is_ipv6(const std::string& host) {
  const std::size_t scope = host.find('%');
  in6_addr parsed{};
  return scope != host.size() - 1 && ::inet_pton(AF_INET6, host.substr(0, scope).c_str(), &parsed) == 1;
}

/// What is wrong with it; empty: nothing.
std::string_view fault_of(const std::string& host) {
  if (host.empty()) return "it names no host";
  if (host.size() > kLongestName) return "a name has 253 characters at most";
  const bool odd = std::ranges::any_of(host, [](unsigned char c) { return c <= ' ' || c > '~'; });
  if (odd || host.find_first_of("[]/\\\"'") != std::string::npos) return "no host has such characters";
  if (host.find(':') != std::string::npos) {
    return is_ipv6(host) ? "" : "it is no address of IPv6, which with a port stands in brackets";
  }
  if (host.find('%') != std::string::npos) return "only addresses of IPv6 have a scope";
  in_addr parsed{};
  if (ends_with_number(host) && ::inet_pton(AF_INET, host.c_str(), &parsed) != 1) {
    return "an address of IPv4 has four decimal numbers of up to 255, without zeros in front";
  }
  return "";
}

}  // namespace

Result<HostPort> HostPort::parse(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return fail(ErrorCode::kInvalidArgument, "\"{}\" is neither a host nor host:port: {}", text, why);
  };
  std::string_view host = text;
  std::optional<std::string_view> port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return refuse("its bracket stays open");
    host = text.substr(1, end - 1);
    const std::string_view behind = text.substr(end + 1);
    if (!behind.empty() && behind.front() != ':')
      return refuse("a bracket is followed by a colon and a port");
    if (!behind.empty()) port = behind.substr(1);
  } else if (std::ranges::count(text, ':') == 1) {
    host = text.substr(0, text.find(':'));
    port = text.substr(host.size() + 1);
  }
  HostPort found{std::string(host), std::nullopt};
  if (const std::string_view fault = fault_of(found.host); !fault.empty()) return refuse(fault);
  if (!port) return found;
  std::uint16_t number = 0;
  const auto [stop, error] = std::from_chars(port->data(), port->data() + port->size(), number);
  if (error != std::errc{} || stop != port->data() + port->size()) return refuse("ports are 0 to 65535");
  found.port = number;
  return found;
}

Result<std::uint16_t> HostPort::port_or(std::uint16_t other) const {
  if (!port || *port == other) return other;
  if (other == 0) return *port;
  return fail(ErrorCode::kInvalidArgument, "{} is given with port {}, and port {} besides", host, *port,
              other);
}

std::string HostPort::text() const {
  if (!port) return host;
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(*port);
}

bool HostPort::is_numeric() const { return host.find(':') != std::string::npos || ends_with_number(host); }

}  // namespace p2p
