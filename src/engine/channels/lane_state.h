// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace p2p::engine {

/// Where this side is with one transport of a connection. docs/channels.md has the table.
enum class LaneState : std::uint8_t {
  kUnshared,      ///< one side cannot use it
  kExpected,      ///< an offer is to come, from this side or to it
  kOffered,       ///< by this side; the answer is to come
  kConnecting,    ///< answered; its channels come up
  kServing,       ///< up here, and the peer was told
  kGivenUpEarly,  ///< and the peer was told, while its offer or answer is still on the way
  kGivenUp,
};

enum class LaneEvent : std::uint8_t { kShare, kOffer, kAnswer, kUp, kGiveUp };

constexpr LaneState next_state(LaneState state, LaneEvent event) {
  const bool unanswered = state == LaneState::kExpected || state == LaneState::kOffered;
  switch (event) {
    case LaneEvent::kShare: return state == LaneState::kUnshared ? LaneState::kExpected : state;
    case LaneEvent::kOffer: return state == LaneState::kExpected ? LaneState::kOffered : state;
    case LaneEvent::kAnswer:
      if (state == LaneState::kGivenUpEarly) return LaneState::kGivenUp;
      return unanswered ? LaneState::kConnecting : state;
    case LaneEvent::kUp: return state == LaneState::kConnecting ? LaneState::kServing : state;
    case LaneEvent::kGiveUp:
      if (unanswered) return LaneState::kGivenUpEarly;
      return state == LaneState::kConnecting || state == LaneState::kServing ? LaneState::kGivenUp : state;
  }
  return state;
}

/// The offer was answered: channels of both sides may speak with each other.
constexpr bool is_answered(LaneState state) {
  return state == LaneState::kConnecting || state == LaneState::kServing || state == LaneState::kGivenUp;
}

constexpr bool is_given_up(LaneState state) { return state >= LaneState::kGivenUpEarly; }

/// Up or given up here, and the peer was told.
constexpr bool is_decided(LaneState state) { return state >= LaneState::kServing; }

}  // namespace p2p::engine
