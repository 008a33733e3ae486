// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/channel_table.h"

namespace p2p::engine {

Connectivity next_state(Connectivity state, ChannelEvent event, AfterFailure after) {
  using State = Connectivity;
  const bool made = is_on_its_way(state) || state == State::kReady;
  switch (event) {
    case ChannelEvent::kOffer:
      return state == State::kAbsent || state == State::kBackoff ? State::kOffered : state;
    case ChannelEvent::kConnect: return state == State::kShutdown ? state : State::kConnecting;
    case ChannelEvent::kUp: return state == State::kConnecting ? State::kReady : state;
    case ChannelEvent::kFail:
      if (state == State::kDraining) return State::kAbsent;
      if (!made) return state;
      if (after == AfterFailure::kRetry) return State::kBackoff;
      return after == AfterFailure::kForget ? State::kAbsent : State::kShutdown;
    case ChannelEvent::kDrain:
      if (made) return State::kDraining;
      return state == State::kBackoff ? State::kAbsent : state;
    case ChannelEvent::kClose: return state == State::kShutdown ? state : State::kAbsent;
  }
  return state;
}

PoolPhase next_phase(PoolPhase phase, PoolEvent event, bool any_ready) {
  using Phase = PoolPhase;
  if (phase == Phase::kEnded) return phase;
  const bool served = phase >= Phase::kServing && phase <= Phase::kInterrupted;
  switch (event) {
    case PoolEvent::kAttach: return phase == Phase::kNegotiating ? Phase::kStarting : phase;
    case PoolEvent::kHurry: return phase == Phase::kStarting && any_ready ? Phase::kServing : phase;
    case PoolEvent::kWanted:
    case PoolEvent::kPeerWanted:
    case PoolEvent::kHeard: return phase == Phase::kIdle ? Phase::kWaking : phase;
    case PoolEvent::kIdle: return served ? Phase::kIdle : phase;
    case PoolEvent::kLeave: return Phase::kLeaving;
    case PoolEvent::kEnd: return Phase::kEnded;
    case PoolEvent::kPeerServes:
    case PoolEvent::kBulk:
    case PoolEvent::kBusy: return phase;
  }
  return phase;
}

}  // namespace p2p::engine
