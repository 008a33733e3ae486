// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/messaging/message_stream_port.h"

namespace p2p::engine {

bool MessageStreamPort::move(const ChannelRunner& runner, Channel& channel, PostUnlockActions& actions) {
  const bool took = std::exchange(took_, false);
  bool moved = took;
  if (channel.state() != ChannelState::kReady) return moved;
  while (stuck() || messages_->next_block(runner, block_)) {
    if (!channel.say(block_)) return moved;
    block_.clear();
    moved = true;
  }
  // What messages do not take this path leaves by theirs.
  if (took && messages_->pending()) actions.call([messages = messages_] { messages->flush(); });
  return moved;
}

}  // namespace p2p::engine
