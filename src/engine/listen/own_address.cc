// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/listen/own_address.h"

#include "base/error.h"
#include "drivers/socket/address.h"
#include "drivers/socket/default_address.h"
#include "drivers/socket/interfaces.h"
#include "p2p/host_port.h"

namespace p2p::engine {
namespace {

bool is_wildcard(const std::string& text) {
  const auto address = socket::Address::parse(text, 0);
  return address && address->is_wildcard();
}

}  // namespace

Result<std::string> own_address(const Options& options) {
  socket::AddressWish wish{.interfaces = options.announce_interfaces, .near = options.announce_near};
  if (!options.listen_address.empty()) {
    const auto wanted = socket::Address::parse(options.listen_address, options.port);
    const Status right = wanted ? wanted->check_scope() : tl::unexpected(wanted.error());
    if (!right)
      return fail(right.error().code, "listen at {}: {}", options.listen_address, right.error().message);
    if (!wanted->is_wildcard()) return wanted->text();
    wish.family = wanted->family();
  }
  return socket::default_address(wish);
}

Result<std::string> announced_address(const Options& options) {
  if (options.announce.empty()) return own_address(options);
  return HostPort::parse(options.announce).map([](const HostPort& one) { return one.host; });
}

std::vector<std::string> listen_addresses(const Options& options, const std::string& own, bool has_key) {
  const bool v4 = own.find(':') == std::string::npos;
  const std::string& wanted = options.listen_address;
  if (wanted.empty() && has_key)
    return v4 ? std::vector<std::string>{"0.0.0.0", "::"} : std::vector<std::string>{"::", "0.0.0.0"};
  if (is_wildcard(wanted)) return {wanted};
  const auto address = socket::Address::parse(own, 0);
  if (!address || address->is_loopback() || address->is_link_local()) return {own};
  return {own, v4 ? "127.0.0.1" : "::1"};
}

std::vector<std::string> other_addresses(const Options& options, const std::string& address, bool has_key) {
  if (!options.announce.empty() || !is_wildcard(listen_addresses(options, address, has_key).front()))
    return {};
  const auto there = socket::Address::parse(address, 0);
  const auto interfaces = socket::interfaces();
  if (!there || !interfaces) return {};
  const socket::AddressWish wish{.interfaces = options.announce_interfaces, .near = ""};
  std::vector<std::string> texts;
  for (const auto& one : socket::choose_others(wish, *interfaces, *there)) texts.push_back(one.text());
  return texts;
}

}  // namespace p2p::engine
