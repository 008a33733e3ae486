// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The states of channels and the events that change them, as tables; docs/channels.md has them.
namespace p2p::engine {

/// Where one channel is. docs/channels.md has the table of states and events.
enum class Connectivity : std::uint8_t {
  kAbsent,      ///< not open: not wanted, or the peer's to open
  kOffered,     ///< the peer was told of it and has not answered
  kConnecting,  ///< each side knows the other's address
  kReady,
  kDraining,  ///< gets no more work, and ends by itself
  kBackoff,   ///< failed, and tried again at its deadline
  kShutdown,  ///< failed, and the transport cannot open it again
};

/// The peer was told of it, and it is not up.
constexpr bool is_on_its_way(Connectivity state) {
  return state == Connectivity::kOffered || state == Connectivity::kConnecting;
}

enum class ChannelEvent : std::uint8_t {
  kOffer,    ///< made here, and offered
  kConnect,  ///< the peer's address came
  kUp,
  kFail,   ///< it failed, could not be made, or did not come up in time
  kDrain,  ///< it is to end once what is under way is over
  kClose,  ///< it was closed here
};

/// What becomes of a channel that has failed.
enum class AfterFailure : std::uint8_t { kRetry, kForget, kNever };

Connectivity next_state(Connectivity state, ChannelEvent event, AfterFailure after);

/// Where all channels of one transport are together.
enum class PoolPhase : std::uint8_t {
  kNegotiating,  ///< the peer's addresses have not come
  kStarting,     ///< until the first ones are up, or failed, or late
  kServing,
  kIdle,         ///< closed, until either side has a use for them
  kWaking,       ///< and opened again
  kInterrupted,  ///< all were lost, and come back
  kLeaving,      ///< the peer has given the transport up: they end by themselves
  kEnded,
};

enum class PoolEvent : std::uint8_t {
  kAttach,      ///< the peer's addresses came
  kPeerServes,  ///< it has said that its first channels are up
  kHurry,       ///< wait for none that is not up yet
  kBulk,        ///< a large transfer has come
  kBusy,        ///< and finds work that is under way
  kWanted,      ///< work waits for channels that are idle
  kPeerWanted,  ///< the acceptor has a use for channels, or for more
  kIdle,        ///< all are closed for want of use
  kHeard,       ///< the peer takes part in opening one
  kLeave,
  kEnd,
};

PoolPhase next_phase(PoolPhase phase, PoolEvent event, bool any_ready);

}  // namespace p2p::engine
