// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "p2p/result.h"
#include "transport/transport.h"

namespace p2p {

/// How the two channels of a pair learn that the other one is shut: each says so once, over its ControlLink,
/// when it touches no memory for its peer any more and will not again. Before both have said so, what one of
/// them had under way may still land. Byte table in docs/wire.md, section "Data streams". Part of its
/// channel.
class Farewell {
 public:
  /// Without a link there is nobody to tell, and nothing to wait for.
  explicit Farewell(ControlLink* control) : control_(control) {}

  /// The peer's channel is known: it gets what is sent. Before that nothing is sent.
  void connected() { connected_ = true; }

  /// Says that this end is shut and why. Only the first call counts.
  void send(std::string_view why);

  /// Takes the peer's message: its reason. kProtocol if it is none.
  Result<std::string> receive(std::span<const std::byte> message);

  /// Both ends are shut, or there is no other to wait for.
  bool both_sent() const { return received_ || !connected_ || control_ == nullptr; }

 private:
  ControlLink* control_;
  bool connected_ = false;
  bool sent_ = false;
  bool received_ = false;
};

}  // namespace p2p
