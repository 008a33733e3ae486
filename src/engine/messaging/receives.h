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

/// The messages that this side of a connection receives: its n-th receive takes the peer's n-th send. Eager
/// messages that come before their receive are kept, up to `room` bytes. A receive is announced to the peer
/// at once if it can take more than an eager message or lies on a device, otherwise when the peer asks for
/// it. Thread-safe.
class Receives : public std::enable_shared_from_this<Receives> {
 public:
  Receives(std::shared_ptr<Context> context, std::shared_ptr<MessageStream> messages, std::uint64_t room)
      : context_(std::move(context)),
        messages_(std::move(messages)),
        room_(room),
        kept_(context_->peer_budget) {}

  /// Never fails itself: what is wrong is the outcome of the transfer that it returns.
  std::shared_ptr<TransferState> post(std::span<const LocalSpan> into);

  /// Messages of the peer, each under the stream's lock. kProtocol for what the peer may not send.
  Status on(wire::EagerMessage& message, PostUnlockActions& actions);
  Status on(const wire::MessageWithdrawn& withdrawn);
  Status on(const wire::ReceiveDone& done, PostUnlockActions& actions);
  Status on(const wire::ReceiveWanted& wanted);
  void on(const wire::SendsEnded& ended, PostUnlockActions& actions);

  std::uint64_t received() const;

  /// Receives that have not ended.
  std::size_t open() const;

  /// The connection closes: refuses new receives, and messages that have met none. Receives that are posted
  /// may still be met.
  void stop(const Error& error);

  /// The connection ended: fails everything.
  void close(const Error& error);

 private:
  using Sequence = std::uint64_t;

  struct Receive {
    std::vector<LocalSpan> into;
    std::vector<wire::ReceiveSpan> spans;  ///< until it is announced
    std::shared_ptr<TransferState> state;
    std::uint64_t room = 0;  ///< bytes that it can take
    bool announced = false;
    bool on_device = false;
  };

  Result<Receive> describe(std::span<const LocalSpan> into) const;
  void announce(Sequence sequence, Receive& receive) P2P_REQUIRES(mutex_);
  bool deliver(Sequence sequence, Receive& receive, const wire::EagerMessage& message,
               PostUnlockActions& actions) P2P_REQUIRES(mutex_);
  void answer(Sequence sequence, const Status& status) P2P_REQUIRES(mutex_);
  Status copy(const Receive& receive, const wire::EagerMessage& message) const;
  void cancel(Sequence sequence);
  void free_room(std::uint64_t bytes) P2P_REQUIRES(mutex_) {
    static_cast<void>(kept_.set(kept_.bytes() - bytes));  // less than before
  }

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<MessageStream> messages_;
  const std::uint64_t room_;

  mutable Mutex mutex_;
  bool stopped_ P2P_GUARDED_BY(mutex_) = false;  // messages without a receive are refused
  bool ended_ P2P_GUARDED_BY(mutex_) = false;    // the peer sends nothing more
  Error error_ P2P_GUARDED_BY(mutex_);
  Sequence next_ P2P_GUARDED_BY(mutex_) = 0;
  Sequence next_eager_ P2P_GUARDED_BY(mutex_) = 0;  // the lowest number that the next one may have
  Sequence wanted_ P2P_GUARDED_BY(mutex_) = 0;      // receives below it are announced when posted
  std::uint64_t received_ P2P_GUARDED_BY(mutex_) = 0;
  std::map<Sequence, Receive> open_ P2P_GUARDED_BY(mutex_);
  std::map<Sequence, wire::EagerMessage> arrived_ P2P_GUARDED_BY(mutex_);  // before their receive
  PeerShare kept_ P2P_GUARDED_BY(mutex_);                                  // room used by arrived_
};

}  // namespace p2p::engine
