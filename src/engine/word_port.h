// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "base/bytes.h"
#include "engine/deferred.h"
#include "engine/words.h"
#include "transport/transport.h"

namespace p2p::engine {

/// Where a connection's words meet one slot's channel: takes the blocks that come over it, and hands it those
/// that leave. Belongs to whoever has the slot's turn.
class WordPort final : public WordListener {
 public:
  explicit WordPort(std::shared_ptr<Words> words) : words_(std::move(words)) {}

  void take(ByteView block) override {
    took_ = true;
    words_->take(block, deferred_);
  }

  /// Words wait to leave, by whatever path.
  bool pending() const { return words_->pending(); }

  /// A block was made that the channel has not taken yet.
  bool stuck() const { return !block_.empty(); }

  /// Hands on what came of the blocks that were taken. Due after each of the channel's looks: it may have no
  /// other one.
  void tell(Deferred& deferred) { deferred.absorb(deferred_); }

  /// Hands the channel, while it is ready, what is to leave over it: an answer goes at once. True if anything
  /// was taken or left.
  bool move(const Slot& slot, Channel& channel, Deferred& deferred);

 private:
  const std::shared_ptr<Words> words_;
  Deferred deferred_;  // what came of blocks
  bool took_ = false;
  Bytes block_;  // to leave
};

}  // namespace p2p::engine
