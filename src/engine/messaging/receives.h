// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "engine/channels/context.h"
#include "engine/messaging/message_stream.h"
#include "engine/request/post_unlock_actions.h"
#include "engine/request/transfer.h"
#include "p2p/memory.h"

namespace p2p::engine {

/// The messages that this side of a connection receives; its n-th receive takes the peer's n-th send. Eager
/// ones that come before their receive are kept, `room` bytes of them. The peer is told at once of receives
/// that take more than an eager message, and of others when it asks. Thread-safe.
class Receives : public std::enable_shared_from_this<Receives> {
 public:
  Receives(std::shared_ptr<Context> context, std::shared_ptr<MessageStream> messages, std::uint64_t room)
      : context_(std::move(context)), messages_(std::move(messages)), room_(room) {}

  std::shared_ptr<TransferState> post(std::span<const LocalSpan> into);

  Status on(wire::EagerMessage& message, PostUnlockActions& actions);
  Status on(const wire::MessageWithdrawn& withdrawn);
  Status on(const wire::ReceiveDone& done, PostUnlockActions& actions);
  Status on(const wire::ReceiveWanted& wanted);
  void on(const wire::SendsEnded& ended, PostUnlockActions& actions);

  std::uint64_t received() const;

  /// Those that wait for the peer's answer.
  std::size_t open() const;

  /// One side starts nothing more: refuses all that comes, and what came and was not asked for. Receives that
  /// were posted may still be met.
  void stop(const Error& error);

  /// The connection ended: fails everything.
  void close(const Error& error);

 private:
  using Sequence = std::uint64_t;

  struct Receive {
    std::vector<LocalSpan> into;
    std::vector<wire::ReceiveSpan> spans;  ///< until they are told
    std::shared_ptr<TransferState> state;
    std::uint64_t room = 0;  ///< bytes
    bool told = false;
    bool on_device = false;
  };

  Result<Receive> describe(std::span<const LocalSpan> into) const;
  void tell(Sequence sequence, Receive& receive) P2P_REQUIRES(mutex_);
  bool deliver(Sequence sequence, Receive& receive, const wire::EagerMessage& message,
               PostUnlockActions& actions) P2P_REQUIRES(mutex_);
  void answer(Sequence sequence, const Status& status) P2P_REQUIRES(mutex_);
  Status copy(const Receive& receive, const wire::EagerMessage& message) const;
  void cancel(Sequence sequence);

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<MessageStream> messages_;
  const std::uint64_t room_;

  mutable Mutex mutex_;
  bool stopped_ P2P_GUARDED_BY(mutex_) = false;  // what comes unasked is refused
  bool ended_ P2P_GUARDED_BY(mutex_) = false;    // nothing more will come
  Error error_ P2P_GUARDED_BY(mutex_);
  Sequence next_ P2P_GUARDED_BY(mutex_) = 0;
  Sequence next_eager_ P2P_GUARDED_BY(mutex_) = 0;  // the least that may come
  Sequence wanted_ P2P_GUARDED_BY(mutex_) = 0;      // below, receives are told as they are posted
  std::uint64_t received_ P2P_GUARDED_BY(mutex_) = 0;
  std::map<Sequence, Receive> open_ P2P_GUARDED_BY(mutex_);
  std::map<Sequence, wire::EagerMessage> arrived_ P2P_GUARDED_BY(mutex_);  // not asked for yet
  std::uint64_t room_used_ P2P_GUARDED_BY(mutex_) = 0;                     // by them
};

}  // namespace p2p::engine
