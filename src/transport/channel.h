// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "p2p/result.h"
#include "transport/batch.h"

namespace p2p {

/// Round trip from which on a path counts as long: throughput is bound by bytes in flight, not by the time to
/// copy and to wake a thread.
inline constexpr std::chrono::milliseconds kLongPath{1};

/// What has gone over a channel's path so far, and what holds up the rest at this moment. Of a path that
/// tells nothing all is 0.
struct PathUse {
  std::uint64_t sent = 0;                   ///< bytes that have reached the other host
  std::uint64_t received = 0;               ///< bytes that have reached this one
  bool send_waits = false;                  ///< bytes wait to leave, for which the peer has room
  bool unread = false;                      ///< bytes have come that this side has not taken
  std::chrono::microseconds round_trip{0};  ///< least seen; 0: not known, or it does not matter
  bool fills_path = false;                  ///< alone, whatever is lost there

  /// So long nothing of what is to be sent has reached the other host, or a small part of what usually does;
  /// 0: it moves, or there is nothing. Known where ChannelSetup::stalls is given.
  std::chrono::milliseconds stalled_for{0};

  /// It had better go another way, if there is one that moves.
  bool stalled() const { return stalled_for >= kLeastStall && stalled_for >= 8 * round_trip; }

  static constexpr std::chrono::milliseconds kLeastStall{300};
};

enum class ChannelState : std::uint8_t { kConnecting, kReady, kFailed };

/// One path to one peer over one rail. Owned and called by one worker at a time, never concurrently.
///
/// Life: made by `open_channel`; `address` goes to the peer over the session; `connect` gets the peer's;
/// `progress` until the state is kReady; then `post` and `progress`. Destroying a channel ends its work:
/// after that it touches no memory.
class Channel {
 public:
  virtual ~Channel() = default;

  /// What the other side's `connect` needs.
  virtual std::vector<std::byte> address() const = 0;

  /// Starts to connect to the channel whose `address` this is. The bytes came from the peer: check them.
  virtual Status connect(std::span<const std::byte> peer_address) = 0;

  virtual ChannelState state() const = 0;
  virtual Error error() const = 0;  ///< why the state is kFailed

  /// Queues the batch; false when full: try again after a completion. Only in kReady. Errors are reported by
  /// the completion.
  virtual bool post(const Batch& batch) = 0;

  /// Does what it can without blocking and appends the batches that ended. True if bytes moved or the state
  /// changed: polling on is worthwhile. A channel that fails completes all its batches.
  virtual bool progress(std::vector<Completion>& completions) = 0;

  /// Cancels a posted batch as far as possible. Its completion follows: kCancelled, or the true outcome; at
  /// once if no other process uses its local memory.
  virtual void abandon(BatchId id) = 0;

  /// Readable while `progress` has something to do; -1 if nothing can tell and `progress` must be polled
  /// while `busy`.
  virtual int ready_fd() const = 0;

  /// Operations are in flight whose end `ready_fd` does not announce.
  virtual bool busy() const { return false; }

  /// Idle in both directions, as far as this end knows: it may be closed.
  virtual bool quiet() const { return true; }

  /// A message from the peer channel's ControlLink.
  virtual Status on_control(std::span<const std::byte> /*message*/) { return {}; }

  /// True if it carries blocks of small messages, of up to kMaxMessageBlockBytes, with less latency than the
  /// ControlLink. They are delivered in order to the other end's MessageListener while the channel works.
  virtual bool carries_messages() const { return false; }

  /// Sends a block; false when full: try again after `progress`. Only in kReady.
  virtual bool say(std::span<const std::byte> /*block*/) { return false; }

  /// `progress` is polled until `arm_events`: the peer's wake-ups are suppressed. True: until then `ready_fd`
  /// becomes readable for nothing but the peer's end and the channel's own alarms.
  virtual bool enter_polling() { return false; }

  /// `progress` is not called again until `ready_fd` is readable; false if there is something to do at once.
  virtual bool arm_events() { return true; }

  virtual PathUse path_use() const { return {}; }

  /// Has it fail with `why`, as one whose path broke: what is under way comes back as kPeerGone once nothing
  /// of it can land any more. Only where channels can be opened again; else nothing happens.
  virtual void give_up(const Error& /*why*/) {}

  /// The other host was heard from over this channel within that time; false also where that is not known.
  virtual bool heard_within(std::chrono::milliseconds /*time*/) const { return false; }

  /// Has the other host answer soon, so that `heard_within` tells whether it can, also of a channel at rest.
  virtual void probe() {}

  virtual bool encrypted() const { return false; }  ///< what it carries; known once it is ready

  /// For people: "127.0.0.1:4001 -> 127.0.0.1:4002".
  virtual std::string describe() const = 0;
};

}  // namespace p2p
