// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/session_states.h"

#include <array>
#include <utility>

namespace p2p::engine {
namespace {

using S = SessionState;

constexpr S kConn = S::kConnecting;
constexpr S kLive = S::kLive;
constexpr S kSusp = S::kSuspended;
constexpr S kResu = S::kResuming;
constexpr S kDrai = S::kDraining;
constexpr S kEnd = S::kEnded;

// A state in the place of itself: nothing changes.
constexpr std::array<std::array<S, kSessionEvents>, kSessionStates> kNext{{
    // Opened Refused Closed Abandoned Broke Proven Moved AllSent Failed
    {kLive, kDrai, kEnd, kEnd, kEnd, kConn, kConn, kConn, kEnd},     // connecting
    {kLive, kDrai, kDrai, kDrai, kSusp, kResu, kLive, kLive, kEnd},  // live
    {kSusp, kSusp, kSusp, kEnd, kSusp, kResu, kSusp, kSusp, kEnd},   // suspended
    {kResu, kResu, kResu, kResu, kEnd, kResu, kLive, kResu, kEnd},   // resuming
    {kDrai, kDrai, kDrai, kDrai, kEnd, kDrai, kDrai, kDrai, kEnd},   // draining
    {kEnd, kEnd, kEnd, kEnd, kEnd, kEnd, kEnd, kEnd, kEnd},          // ended
}};

}  // namespace

std::string_view to_string(SessionState state) {
  switch (state) {
    case S::kConnecting: return "connecting";
    case S::kLive: return "live";
    case S::kSuspended: return "suspended";
    case S::kResuming: return "resuming";
    case S::kDraining: return "draining";
    case S::kEnded: break;
  }
  return "ended";
}

SessionState SessionStates::next(SessionEvent event) const {
  return kNext[static_cast<std::size_t>(state_)][static_cast<std::size_t>(event)];
}

bool SessionStates::on(SessionEvent event, Clock::time_point now, std::optional<Error> why) {
  const S before = state_;
  const S next = this->next(event);
  if (before == S::kDraining && event == SessionEvent::kAllSent) {
    limit_ = now + limits_.lingering;
    return true;
  }
  if (next == before) return false;
  state_ = next;
  since_ = now;
  limit_.reset();
  if (next == S::kSuspended) limit_ = now + limits_.suspended;
  if (next == S::kDraining) limit_ = now + limits_.draining;
  const bool explained = next == S::kSuspended || next == S::kDraining || next == S::kEnded;
  if (before == S::kDraining || !explained) return true;
  if (why) why_ = std::move(why);
  return true;
}

}  // namespace p2p::engine
