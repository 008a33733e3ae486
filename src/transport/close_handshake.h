// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "p2p/result.h"
#include "transport/transport.h"

namespace p2p {

/// Closing of a pair of channels: each sends one message over its ControlLink when it accesses no memory for
/// its peer any more and will not again. Until both have, bytes in flight may still land. Byte table in
/// docs/wire.md, section "Data streams". Part of its channel.
class CloseHandshake {
 public:
  /// Null: there is no peer to tell, and none to wait for.
  explicit CloseHandshake(ControlLink* control) : control_(control) {}

  /// The peer's channel is known: it gets what is sent. Before that nothing is sent.
  void connected() { connected_ = true; }

  /// This end is closed, and why. Only the first call counts.
  void send(std::string_view why);

  /// Takes the peer's message: its reason. kProtocol if it is none.
  Result<std::string> receive(std::span<const std::byte> message);

  /// Both ends are closed, or there is no other to wait for.
  bool both_sent() const { return received_ || !connected_ || control_ == nullptr; }

 private:
  ControlLink* control_;
  bool connected_ = false;
  bool sent_ = false;
  bool received_ = false;
};

}  // namespace p2p
