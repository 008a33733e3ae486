// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "engine/request/post_unlock_actions.h"
#include "transport/transport.h"

namespace p2p::engine {

class ChannelRunner;

/// Where a connection's short messages meet one channel that carries them. Belongs to the channel's runner,
/// whose mutex guards it.
class MessagePort : public MessageListener {
 public:
  /// Messages wait to leave, by whatever path.
  virtual bool pending() const = 0;

  /// A block was made that the channel has not taken yet.
  virtual bool stuck() const = 0;

  /// Hands on what came of the blocks that were taken. Due after each time that the channel was polled.
  virtual void tell(PostUnlockActions& actions) = 0;

  /// Hands the channel, while it is ready, what is to leave over it: an answer goes at once. True if anything
  /// was taken or left.
  virtual bool move(const ChannelRunner& runner, Channel& channel, PostUnlockActions& actions) = 0;
};

/// One for each channel; called on any thread.
using MakeMessagePort = std::function<std::unique_ptr<MessagePort>()>;

}  // namespace p2p::engine
