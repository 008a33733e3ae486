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

/// Of a round trip: from here on the path decides how much a stream carries, not what a core copies and how
/// soon a thread wakes.
inline constexpr std::chrono::milliseconds kLongPath{1};

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

  /// Takes the batch, or answers false when full: try again after a completion. Only in kReady. Whatever
  /// goes wrong later is a completion.
  virtual bool post(const Batch& batch) = 0;

  /// Moves what can be moved without blocking and appends the batches that ended. True if anything moved
  /// (bytes or states): it is worth polling on. A channel that fails completes all its batches.
  virtual bool progress(std::vector<Completion>& completions) = 0;

  /// Asks that the local memory of a posted batch be left alone as soon as possible; its completion follows
  /// (kCancelled, or the true outcome), without delay if only the local side is concerned.
  virtual void abandon(BatchId id) = 0;

  /// Readable while `progress` has something to do; -1 if nothing can tell and `progress` must be polled
  /// while `busy`.
  virtual int ready_fd() const = 0;

  /// Something is under way that `ready_fd` does not announce.
  virtual bool busy() const { return false; }

  /// Nothing is under way in either direction, as far as this end knows: it may be closed for want of use.
  virtual bool quiet() const { return true; }

  /// A message from the peer channel's ControlLink.
  virtual Status on_control(std::span<const std::byte> /*message*/) { return {}; }

  /// True if it carries words: blocks of up to kMaxMessageBlockBytes that are quicker than those of the
  /// ControlLink. They come in order, at the other end's MessageListener, as long as the channel works.
  virtual bool carries_messages() const { return false; }

  /// Takes a block, or answers false when full: try again after `progress`. Only in kReady.
  virtual bool say(std::span<const std::byte> /*block*/) { return false; }

  /// Somebody calls `progress` again and again, until `rest`: a peer need not make `ready_fd` tell. True:
  /// until then it tells of nothing but the peer's end.
  virtual bool stir() { return false; }

  /// Nobody calls `progress` until `ready_fd` tells; false if there is something to do at once.
  virtual bool rest() { return true; }

  /// The least time for a round trip that was seen; 0 where it is not known, or does not matter.
  virtual std::chrono::microseconds round_trip() const { return {}; }

  /// The other host was heard of over it within this time; false also where that is not known.
  virtual bool heard_within(std::chrono::milliseconds /*time*/) const { return false; }

  virtual bool encrypted() const { return false; }  ///< what it carries; known once it is ready

  /// For people: "127.0.0.1:4001 -> 127.0.0.1:4002".
  virtual std::string describe() const = 0;
};

}  // namespace p2p
