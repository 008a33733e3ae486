// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/word_port.h"

namespace p2p::engine {

bool WordPort::move(const Slot& slot, Channel& channel, Deferred& deferred) {
  const bool took = std::exchange(took_, false);
  bool moved = took;
  if (channel.state() != ChannelState::kReady) return moved;
  while (stuck() || words_->next_block(slot, block_)) {
    if (!channel.say(block_)) return moved;
    block_.clear();
    moved = true;
  }
  // What words do not take this path leaves by theirs.
  if (took && words_->pending()) deferred.call([words = words_] { words->flush(); });
  return moved;
}

}  // namespace p2p::engine
