// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/channel_table.h"

namespace p2p::engine {

Connectivity next_state(Connectivity state, ChannelEvent event, AfterFailure after) {
  const bool made = is_on_its_way(state) || state == Connectivity::kReady;
  switch (event) {
    case ChannelEvent::kOffer:
      return state == Connectivity::kAbsent || state == Connectivity::kBackoff ? Connectivity::kOffered
                                                                               : state;
    case ChannelEvent::kConnect: return state == Connectivity::kShutdown ? state : Connectivity::kConnecting;
    case ChannelEvent::kUp: return state == Connectivity::kConnecting ? Connectivity::kReady : state;
    case ChannelEvent::kFail:
      if (state == Connectivity::kDraining) return Connectivity::kAbsent;
      if (!made) return state;
      if (after == AfterFailure::kRetry) return Connectivity::kBackoff;
      return after == AfterFailure::kForget ? Connectivity::kAbsent : Connectivity::kShutdown;
    case ChannelEvent::kDrain:
      if (made) return Connectivity::kDraining;
      return state == Connectivity::kBackoff ? Connectivity::kAbsent : state;
    case ChannelEvent::kClose: return state == Connectivity::kShutdown ? state : Connectivity::kAbsent;
  }
  return state;
}

PoolPhase next_phase(PoolPhase phase, PoolEvent event, bool any_ready) {
  if (phase == PoolPhase::kEnded) return phase;
  const bool served = phase >= PoolPhase::kServing && phase <= PoolPhase::kInterrupted;
  switch (event) {
    case PoolEvent::kAttach: return phase == PoolPhase::kNegotiating ? PoolPhase::kStarting : phase;
    case PoolEvent::kHurry: return phase == PoolPhase::kStarting && any_ready ? PoolPhase::kServing : phase;
    case PoolEvent::kWanted:
    case PoolEvent::kPeerWanted:
    case PoolEvent::kHeard: return phase == PoolPhase::kIdle ? PoolPhase::kWaking : phase;
    case PoolEvent::kIdle: return served ? PoolPhase::kIdle : phase;
    case PoolEvent::kLeave: return PoolPhase::kLeaving;
    case PoolEvent::kEnd: return PoolPhase::kEnded;
    case PoolEvent::kPeerServes:
    case PoolEvent::kBulk:
    case PoolEvent::kBusy: return phase;
  }
  return phase;
}

}  // namespace p2p::engine
