// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/unique_fd.h"
#include "p2p/result.h"

namespace p2p {

/// The endpoint's listening port, at which the connections of channels may arrive, too, so that a firewall
/// needs one rule, and those of sessions that go on. Such a connection's first bytes say for whom it is.
/// Thread-safe but for `open_at`.
class StreamPort {
 public:
  using Token = std::array<std::byte, 16>;

  /// The prefix of a channel's: this number, two bytes that are its own, the token.
  static constexpr std::uint32_t kMagic = 0x74703270;  // "p2pt"
  static constexpr std::size_t kPrefixBytes = sizeof kMagic + 2 + sizeof(Token);

  /// Gets each connection whose prefix names the token, with the prefix still unread. Called with a lock
  /// held: it must only hand the socket on.
  using Take = std::function<void(UniqueFd)>;

  virtual ~StreamPort() = default;

  /// The port at which connections to a numeric address of this host arrive; opened if need be. On the
  /// session's thread.
  virtual Result<std::uint16_t> open_at(const std::string& address) = 0;

  virtual void expect(const Token& token, Take take) = 0;

  /// `take` is called no more after this.
  virtual void forget(const Token& token) = 0;
};

}  // namespace p2p
