// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/channels/context.h"
#include "engine/messaging/message_stream.h"
#include "engine/messaging/posted_receives.h"
#include "engine/request/post_unlock_actions.h"
#include "engine/request/transfer.h"
#include "p2p/memory.h"

namespace p2p::engine {

/// The messages that this side of a connection sends: the n-th goes to the peer's n-th receive. A short one
/// leaves at once in the message stream (eagerly), within the room that the peer keeps for such. Any other is
/// written into the memory of its receive, once the peer has posted that. Thread-safe.
class Sends : public std::enable_shared_from_this<Sends> {
 public:
  /// What it needs of its connection. Called without a lock of this object.
  struct Link {
    std::function<Result<RemoteRegionId>(const wire::ReceiveSpan&)> import;

    /// Starts a write and calls the last argument with its outcome. Returns the write's state, to cancel it.
    std::function<std::shared_ptr<TransferState>(std::span<const LocalSpan>, std::span<const RemoteSpan>,
                                                 std::function<void(Status)>)>
        write;
  };

  /// Bounds of an eager message, in bytes and spans, and the bytes of the peer's room that each takes beside
  /// its own. Both sides must agree on all three (docs/wire.md).
  static constexpr std::uint64_t kMostEagerBytes = std::uint64_t{16} << 10;
  static constexpr std::uint64_t kEagerCost = 64;
  static constexpr std::size_t kMostEagerSpans = 64;

  Sends(std::shared_ptr<Context> context, std::shared_ptr<MessageStream> messages, Link link)
      : context_(std::move(context)),
        messages_(std::move(messages)),
        link_(std::move(link)),
        posted_(context_->options.max_posted_receives, context_->peer_budget) {}

  /// How many bytes the peer keeps of eager messages whose receives are not posted yet. Until this is called
  /// none is sent eagerly.
  void set_room(std::uint64_t bytes);

  /// Never fails itself: what is wrong is the outcome of the transfer that it returns.
  std::shared_ptr<TransferState> post(std::span<const LocalSpan> message);

  /// Messages of the peer, each under the stream's lock. kProtocol for what the peer may not send.
  Status on(wire::ReceivePosted& posted, PostUnlockActions& actions);
  Status on(const wire::ReceiveWithdrawn& withdrawn, PostUnlockActions& actions);
  Status on(const wire::MessageAnswered& answered, PostUnlockActions& actions);
  Status on(const wire::MessageDeclined& declined, PostUnlockActions& actions);

  /// Eager messages that the peer has not answered.
  std::size_t open() const;

  /// The connection closes: fails sends that have met no receive, and those that are posted from now on. What
  /// is under way goes on; when it has ended, SendsEnded tells the peer.
  void stop(const Error& error);

  /// To be called before the channels end, and with them the writes under way. From now on the peer is not
  /// told when a write fails: bytes of it may still wait in the peer's sockets and land afterwards, into
  /// memory that the peer would take for free. Its receives end with the connection, when its own channels
  /// have ended.
  void cut_off();

  /// The connection ended: fails everything.
  void close(const Error& error);

 private:
  struct Send {
    std::vector<LocalSpan> message;
    std::shared_ptr<TransferState> state;
  };
  struct Eager {
    Send send;
    std::uint64_t cost = 0;  ///< bytes of the peer's room
  };
  struct Write {
    std::shared_ptr<TransferState> send;
    std::shared_ptr<TransferState> write;  ///< once it has started
  };
  using Sequence = PostedReceives::Sequence;

  bool may_be_eager(std::uint64_t bytes, std::size_t spans, bool on_host) const P2P_REQUIRES(mutex_);
  bool has_room(std::uint64_t bytes) const P2P_REQUIRES(mutex_);
  void send_eagerly(Sequence sequence, Send send, PostUnlockActions& actions) P2P_REQUIRES(mutex_);
  void send_queued(PostUnlockActions& actions) P2P_REQUIRES(mutex_);
  void answered_up_to(Sequence sequence, PostUnlockActions& actions) P2P_REQUIRES(mutex_);
  void confirm_withdrawal(Sequence sequence) P2P_REQUIRES(mutex_);
  void end_if_done() P2P_REQUIRES(mutex_);
  bool match(Sequence sequence, PostUnlockActions& actions) P2P_REQUIRES(mutex_);
  void start(Sequence sequence, const Send& send, const PostedReceives::Receive& receive);
  void finish(Sequence sequence, const std::shared_ptr<TransferState>& state, Status status,
              bool tell_peer = true);
  void assist(Sequence sequence, const TransferState& state,
              std::chrono::steady_clock::time_point deadline) const;
  void cancel(Sequence sequence);

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<MessageStream> messages_;
  const Link link_;

  mutable Mutex mutex_;
  bool closed_ P2P_GUARDED_BY(mutex_) = false;
  bool end_said_ P2P_GUARDED_BY(mutex_) = false;
  bool cut_off_ P2P_GUARDED_BY(mutex_) = false;
  Error error_ P2P_GUARDED_BY(mutex_);
  Sequence next_ P2P_GUARDED_BY(mutex_) = 0;

  std::uint64_t room_ P2P_GUARDED_BY(mutex_) = 0;           // at the peer
  std::uint64_t room_used_ P2P_GUARDED_BY(mutex_) = 0;      // by `eager_`
  std::map<Sequence, Send> queued_ P2P_GUARDED_BY(mutex_);  // eager, wait for room at the peer
  std::map<Sequence, Eager> eager_ P2P_GUARDED_BY(mutex_);  // sent, not answered
  std::vector<ByteView> parts_ P2P_GUARDED_BY(mutex_);      // scratch; kept for its capacity

  std::map<Sequence, Send> waiting_ P2P_GUARDED_BY(mutex_);  // to be written, receive not posted yet
  PostedReceives posted_ P2P_GUARDED_BY(mutex_);             // no send met yet
  std::map<Sequence, Write> writes_ P2P_GUARDED_BY(mutex_);  // of matched sends
};

}  // namespace p2p::engine
