// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/mutex.h"
#include "engine/messaging/frame_log.h"
#include "engine/request/post_unlock_actions.h"
#include "transport/transport.h"
#include "wire/messages.h"

namespace p2p::engine {

class ChannelRunner;

/// MessageStream: the short messages of a connection that must be quick: of receives, of notifications, and
/// messages that are short themselves. They leave in order and come once, over the quickest path that there
/// is: a channel that carries messages, else the session. What the peer has not acknowledged is kept, and
/// goes again when the path changes. Thread-safe.
///
/// On the way they are blocks: offset u64 of the first byte among all that were ever said, offset u64 up to
/// which the sender has heard, u8 that asks for such a message back, then whole frames.
class MessageStream : public std::enable_shared_from_this<MessageStream> {
 public:
  struct Hooks {
    std::function<void(const wire::Message&)> send;  ///< over the session

    /// Takes a message that came; called under locks, one at a time.
    std::function<Status(wire::Message&, PostUnlockActions&)> handle;

    /// The peer broke the protocol.
    std::function<void(const Error&)> broken;
  };

  /// A longer frame is not accepted.
  static constexpr std::size_t kMaxFrameBytes = std::size_t{32} << 10;

  /// A peer that leaves more of what it was answered unacknowledged is one that takes nothing.
  static constexpr std::uint64_t kMaxAnswerBytes = std::uint64_t{64} << 20;

  MessageStream(std::chrono::nanoseconds spin, Hooks hooks) : spin_(spin), hooks_(std::move(hooks)) {}

  /// Queues a message, to leave at the next `flush`. `tail` continues its last field, which is Bytes. May be
  /// called under the caller's locks, which then make the order. Fails if the tail's memory is bad.
  Status say(const wire::Message& message, std::span<const ByteView> tail);
  void say(const wire::Message& message) { static_cast<void>(say(message, {})); }

  /// What was said last may be one of many a moment: it waits for others, but not for longer than the peer
  /// takes to answer what went before.
  void gather();

  /// Sends what was queued, on this thread if nobody else is at the channel. Hold no lock.
  void flush();

  /// Sends it unless it may wait for more.
  void flush_if_due();

  /// From now on messages take this runner's channel, or the session if it is null. All that was not
  /// acknowledged goes again.
  void travel_by(std::shared_ptr<ChannelRunner> runner);

  /// The runner's channel, if messages take one.
  std::shared_ptr<ChannelRunner> path() const;

  /// The next block for the runner's channel. False: none.
  bool next_block(const ChannelRunner& runner, Bytes& block);

  /// Something waits to be sent. Needs no lock.
  bool pending() const { return pending_.load(); }

  /// Takes a block that came, by whatever path.
  void take(ByteView block, PostUnlockActions& actions);

  /// Moves messages on from a waiting caller's thread, until `through`, until nothing has moved for the spin
  /// time, or until the deadline. `all`: moves other channels of that transport on as well, as few as they
  /// are.
  void assist(const std::function<bool()>& through, std::chrono::steady_clock::time_point deadline, bool all);
  bool assists() const { return spin_.count() != 0; }

  /// Says nothing more.
  void close();

 private:
  Status take_block(ByteView block, PostUnlockActions& actions);
  Status take_frames(std::uint64_t offset, ByteView frames, PostUnlockActions& actions)
      P2P_REQUIRES(in_mutex_);
  Status acknowledged(std::uint64_t offset);
  bool due() const P2P_REQUIRES(out_mutex_);
  void note_pending() P2P_REQUIRES(out_mutex_);
  bool build(Bytes& block) P2P_REQUIRES(out_mutex_);
  void flush_to_session();

  const std::chrono::nanoseconds spin_;
  const Hooks hooks_;

  Mutex in_mutex_;  // held while messages are handled
  std::uint64_t expected_ P2P_GUARDED_BY(in_mutex_) = 0;
  wire::Message message_ P2P_GUARDED_BY(in_mutex_);  // the last that came, for its memory

  Mutex session_mutex_;  // held from the making of a block to its place in the session's queue

  mutable Mutex out_mutex_;
  FrameLog log_ P2P_GUARDED_BY(out_mutex_);
  std::shared_ptr<ChannelRunner> path_ P2P_GUARDED_BY(out_mutex_);
  bool open_ P2P_GUARDED_BY(out_mutex_) = false;
  std::uint64_t sent_ P2P_GUARDED_BY(out_mutex_) = 0;       // up to here, on this path
  std::uint64_t sent_most_ P2P_GUARDED_BY(out_mutex_) = 0;  // on any
  std::uint64_t many_end_ P2P_GUARDED_BY(out_mutex_) = 0;   // behind the last message of many
  std::uint64_t asked_ P2P_GUARDED_BY(out_mutex_) = 0;      // behind the last block that asks
  std::uint64_t heard_ P2P_GUARDED_BY(out_mutex_) = 0;      // of the peer
  std::uint64_t told_ P2P_GUARDED_BY(out_mutex_) = 0;       // of that, to the peer
  bool answer_due_ P2P_GUARDED_BY(out_mutex_) = false;
  std::atomic<bool> pending_{false};  // `due`, for those who look in each turn of a channel

  // What the peer made this side say: of what is kept up to the mark at most so much, and so much since.
  std::atomic<std::thread::id> taker_{};  // handles messages: what it says are answers
  std::uint64_t answers_mark_ P2P_GUARDED_BY(out_mutex_) = 0;
  std::uint64_t older_answers_ P2P_GUARDED_BY(out_mutex_) = 0;
  std::uint64_t answers_ P2P_GUARDED_BY(out_mutex_) = 0;
};

}  // namespace p2p::engine
