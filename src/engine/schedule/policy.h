// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

#include "engine/request/stripe.h"
#include "engine/schedule/rate_estimator.h"
#include "p2p/options.h"
#include "transport/transport.h"

namespace p2p::engine {

/// How one lane's work gets to its channels: how it is cut, which thread starts it and which looks after it.
/// Chosen once by what the transport says of itself; nothing else in the engine asks which kind it is.
struct Policy {
  /// Moving bytes takes a thread: transfers are spread over channels and workers; a caller does small ones
  /// himself, since to wake a worker and be woken takes longer than they do.
  static Policy spread(BatchLimits limits, std::chrono::nanoseconds spin);

  /// A device moves the bytes: to start it takes no longer than to wake a worker, however long the copy. So a
  /// caller starts it, on the first channel as long as that one is free: a device that is kept ready for
  /// short copies is so for one channel, and long ones on several channels share the way and are slower
  /// together.
  static Policy by_caller(BatchLimits limits, std::chrono::nanoseconds spin);

  /// What the transport asked for.
  static Policy of(const Capabilities& capabilities, const Options& options);

  /// A batch is at most this.
  BatchLimits limits;

  /// How long a caller who waits polls after the last movement. 0: he does not.
  std::chrono::nanoseconds spin{};

  /// Transfers up to this many bytes are started by the caller: lists of blocks, and single blocks.
  std::uint64_t start_bytes = 0;
  std::uint64_t start_block_bytes = 0;

  /// No batch is made smaller than this to give another channel some.
  std::uint64_t least_share = 0;

  /// What another thread is woken for.
  std::uint64_t thread_bytes = 0;

  /// A channel that was given so many bytes in a turn leaves the rest of the work to its next one: its thread
  /// has other channels to look at. A batch more at most.
  std::uint64_t turn_bytes = std::numeric_limits<std::uint64_t>::max();

  /// Callers start on one channel after the other, and on the first one while none has anything under way.
  /// False: on the first one that is free.
  bool takes_turns = true;

  /// How often a caller looks at a channel that another thread is at, before he goes on to the next or leaves
  /// all to that one: who only looks is gone within a microsecond.
  static constexpr int kLooks = 50;

  /// Transfers up to this many bytes are moved on by the caller who waits for them.
  std::uint64_t assist_bytes = 0;

  /// He moves the channel that started his transfer, none if the workers did, and stays at it; else all
  /// channels, unless another thread is at one.
  bool stays = false;

  /// Workers leave a channel alone for so long after a caller has moved it, and meanwhile look for no work on
  /// idle ones, which a caller is about to start. 0: they do not care.
  std::chrono::nanoseconds callers_turn{};

  /// So long without a turn of a caller who assists: the system has given his core to another thread.
  static constexpr std::chrono::microseconds kAbsence{50};

  /// Who has just been at a channel is often back as soon, and should not find its thread there: callers who
  /// send one message after the other. On 32 cores 6 us were better than 0, 3, 12 and 25.
  static constexpr std::chrono::microseconds kReturn{6};

  /// Over a short path a channel takes what it moves in so long, and leaves the rest to others, which may be
  /// opened while it is at work. 0: as much as it has room for.
  std::chrono::milliseconds most_held{};

  /// Workers look at a channel now and then for so long after its last movement, so that what a caller starts
  /// on it need not wake them.
  std::chrono::nanoseconds watch{};

  /// An item whose channels are lost again and again for so long may go over another transport.
  std::chrono::milliseconds patience{3000};

  /// Bytes of a batch of what is left of a transfer while nothing else waits: half of the channels get some,
  /// as far as it is worth the waking of a thread. The other half of the cores is the peer's or the
  /// program's.
  std::uint64_t share(std::uint64_t left, std::size_t channels) const;

  /// Of so many bytes to be read, what a channel takes while another has nothing under way. To ask for them
  /// takes no time, so the one whose thread is awake first would have all.
  std::uint64_t read_share(std::uint64_t left, std::size_t channels) const {
    return takes_turns ? std::max({thread_bytes, least_share, left / channels})
                       : std::numeric_limits<std::uint64_t>::max();
  }

  /// How many channels are to look for so many bytes.
  std::size_t channels_worth(std::uint64_t bytes, std::size_t channels) const {
    return bytes / std::max(thread_bytes, share(bytes, channels)) + 1;
  }

  /// Bytes of the next batch of a channel while a higher class may come at any time, so that that one finds
  /// little before it; 0: it has enough under way, unless the batch is `owed`.
  std::uint64_t short_batch(const RateEstimator& channel, bool owed) const;

  bool inline_eligible(const Batch& all) const {
    return all.bytes <= (all.segments.size() == 1 ? start_block_bytes : start_bytes);
  }
  bool left_to_callers() const { return callers_turn.count() != 0; }
};

}  // namespace p2p::engine
