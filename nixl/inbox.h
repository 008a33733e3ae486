// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "abi/types.h"
#include "p2p/endpoint.h"

namespace p2p::nixl {

/// What an agent says of itself in the handshake of each connection, so that its notifications bear its name.
std::string encode_note(std::string_view agent);

/// Longest name that a note takes.
inline constexpr std::size_t kMaxAgentName = 4096;

/// Collects the notifications of all connections that peers opened. Thread-safe.
class Inbox {
 public:
  explicit Inbox(Endpoint& endpoint) : endpoint_(endpoint) {}

  /// Appends all that have come, oldest first for each peer.
  void take(notif_list_t& out);

 private:
  struct Source {
    Connection connection;
    std::string agent;  ///< empty: not a NIXL agent, and what it says is dropped
  };

  Endpoint& endpoint_;
  std::mutex mutex_;
  std::vector<Source> sources_;
};

}  // namespace p2p::nixl
