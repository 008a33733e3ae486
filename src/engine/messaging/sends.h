// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/channels/context.h"
#include "engine/messaging/message_stream.h"
#include "engine/request/post_unlock_actions.h"
#include "engine/request/transfer.h"
#include "p2p/memory.h"

namespace p2p::engine {

/// The messages that this side of a connection sends; the n-th goes to the peer's n-th receive. A short one
/// travels eagerly, within the room that the peer keeps for such; any other is written to where its receive
/// is, once the peer has posted that. Thread-safe.
class Sends : public std::enable_shared_from_this<Sends> {
 public:
  /// What it needs of its connection.
  struct Link {
    std::function<Result<RemoteSpan>(const wire::ReceiveSpan&)> import;

    /// Writes, and tells the outcome; returns the write's state, for cancelling.
    std::function<std::shared_ptr<TransferState>(std::span<const LocalSpan>, std::span<const RemoteSpan>,
                                                 std::function<void(Status)>)>
        write;
  };

  /// Of an eager message; what the peer keeps for each beside it counts kEagerCost.
  static constexpr std::uint64_t kMostEagerBytes = std::uint64_t{16} << 10;
  static constexpr std::uint64_t kEagerCost = 64;
  static constexpr std::size_t kMostEagerSpans = 64;

  Sends(std::shared_ptr<Context> context, std::shared_ptr<MessageStream> messages, Link link)
      : context_(std::move(context)), messages_(std::move(messages)), link_(std::move(link)) {}

  /// The peer keeps so much of messages whose receives are not posted yet. 0 before it is known.
  void set_room(std::uint64_t bytes);

  std::shared_ptr<TransferState> post(std::span<const LocalSpan> message);

  Status on(wire::ReceivePosted& posted, PostUnlockActions& actions);
  Status on(const wire::ReceiveWithdrawn& withdrawn, PostUnlockActions& actions);
  Status on(const wire::MessageAnswered& answered, PostUnlockActions& actions);
  Status on(const wire::MessageDeclined& declined, PostUnlockActions& actions);

  /// Eager ones that the peer has not answered.
  std::size_t open() const;

  /// One side starts nothing more: fails what has not met its other half, and all that comes. What is under
  /// way goes on.
  void stop(const Error& error);

  /// The channels are about to end, and with them the writes under way. What the peer has received of those
  /// and not looked at yet would land after it was told of a failure, so it is told none: its receives end
  /// with the connection, when its own channels have ended.
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
    std::uint64_t cost = 0;  ///< of the peer's room
  };
  struct Write {
    std::shared_ptr<TransferState> send;
    std::shared_ptr<TransferState> write;  ///< once it has started
  };
  struct Receive {  // the peer's
    std::vector<wire::ReceiveSpan> spans;
    bool withdrawn = false;
  };
  using Sequence = std::uint64_t;

  bool may_be_eager(std::uint64_t bytes, std::size_t spans, bool on_host) const P2P_REQUIRES(mutex_);
  bool has_room(std::uint64_t bytes) const P2P_REQUIRES(mutex_);
  void send_eagerly(Sequence sequence, Send send) P2P_REQUIRES(mutex_);
  void send_queued() P2P_REQUIRES(mutex_);
  void answered_up_to(Sequence sequence, PostUnlockActions& actions) P2P_REQUIRES(mutex_);
  void say_withdrawn(Sequence sequence) P2P_REQUIRES(mutex_);
  void end_if_done() P2P_REQUIRES(mutex_);
  std::function<void()> match(Sequence sequence) P2P_REQUIRES(mutex_);
  void start(Sequence sequence, const Send& send, const Receive& receive);
  void finish(Sequence sequence, const std::shared_ptr<TransferState>& state, Status status);
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
  bool peer_on_device_ P2P_GUARDED_BY(mutex_) = false;      // as its last receive that was heard of
  std::map<Sequence, Send> queued_ P2P_GUARDED_BY(mutex_);  // eager, for lack of room
  std::map<Sequence, Eager> eager_ P2P_GUARDED_BY(mutex_);  // not answered
  std::vector<ByteView> items_ P2P_GUARDED_BY(mutex_);      // of one, for its capacity

  std::map<Sequence, Send> waiting_ P2P_GUARDED_BY(mutex_);  // to be written, not matched yet
  std::map<Sequence, Receive> posted_ P2P_GUARDED_BY(mutex_);
  std::optional<std::pair<Sequence, Receive>> coming_ P2P_GUARDED_BY(mutex_);  // posted in part
  std::map<Sequence, Write> writes_ P2P_GUARDED_BY(mutex_);                    // of matched sends
};

}  // namespace p2p::engine
