// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "engine/channels/context.h"
#include "transport/transport.h"

namespace p2p::engine {

/// Carries one channel's messages over the session.
class SessionLink final : public ControlLink {
 public:
  SessionLink(SendMessage send, std::string transport, std::uint32_t channel)
      : send_(std::move(send)), transport_(std::move(transport)), channel_(channel) {}

  void send(std::span<const std::byte> message) override {
    send_(wire::ChannelControl{transport_, channel_, Bytes(message.begin(), message.end())});
  }

 private:
  const SendMessage send_;
  const std::string transport_;
  const std::uint32_t channel_;
};

}  // namespace p2p::engine
