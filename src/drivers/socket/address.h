// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "p2p/result.h"

namespace p2p::socket {

/// A numeric IPv4 or IPv6 address with a port. A value; an address of IPv6 may carry a scope
/// ("fe80::1%eth0").
class Address {
 public:
  Address() = default;

  /// As HostPort::parse reads it; kInvalidArgument unless `text` is a numeric address, or names a port that
  /// is not `port`, if that is not 0.
  static Result<Address> parse(std::string_view text, std::uint16_t port);

  /// From the system's form, IPv4 mapped into IPv6 as IPv4; kInvalidArgument for families other than the two.
  static Result<Address> from(const sockaddr* address, socklen_t size);

  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t raw_size() const { return size_; }
  int family() const { return storage_.ss_family; }

  std::string text() const;  ///< without the port
  std::uint16_t port() const;
  void set_port(std::uint16_t port);

  /// "127.0.0.1:4001", "[::1]:4001".
  std::string describe() const;

  bool is_loopback() const;
  bool is_link_local() const;
  bool is_wildcard() const;  ///< 0.0.0.0 or ::

  /// kInvalidArgument for an address of a link that does not say which one.
  Status check_scope() const;

  /// Takes the scope of `other`: a peer's name for its own interface means nothing here.
  void take_scope(const Address& other);

  /// Same family and host; ports and scopes do not matter.
  bool same_host(const Address& other) const;

  /// Same family and the first `prefix_bits` bits.
  bool same_network(const Address& other, unsigned prefix_bits) const;

 private:
  void unmap();

  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

}  // namespace p2p::socket
