// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "base/bytes.h"
#include "engine/messaging/message_stream.h"
#include "engine/schedule/message_port.h"

namespace p2p::engine {

/// The port of a message stream.
class MessageStreamPort final : public MessagePort {
 public:
  explicit MessageStreamPort(std::shared_ptr<MessageStream> messages) : messages_(std::move(messages)) {}

  void take(ByteView block) override {
    took_ = true;
    messages_->take(block, actions_);
  }

  bool pending() const override { return messages_->pending(); }
  bool stuck() const override { return !block_.empty(); }
  void tell(PostUnlockActions& actions) override { actions.absorb(actions_); }
  bool move(const ChannelRunner& runner, Channel& channel, PostUnlockActions& actions) override;

 private:
  const std::shared_ptr<MessageStream> messages_;
  PostUnlockActions actions_;  // what came of blocks
  bool took_ = false;
  Bytes block_;  // to leave
};

}  // namespace p2p::engine
