// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Channels that follow: the first one of each rail serves before the others are opened. The rules are in
// docs/decisions/channels-follow.md.
#include <algorithm>

#include "engine/channels/channel_set.h"
#include "wire/following.h"

namespace p2p::engine {
namespace {

/// For what comes first on a connection, which is mostly waited for, before others take this side's time and
/// the peer's.
constexpr std::chrono::milliseconds kFirst{10};

}  // namespace

/// The acceptor keeps a place as the connector does, as far as it has one for it.
void ChannelSet::take_offer(Place& place, const Bytes& offered, bool peer_has_spare) {
  const bool follows = offered == wire::following();
  if (peer_has_spare && offered.empty()) place.extra = place.spare = true;
  place.follows = place.later = follows && !place.spare;
}

/// So many are up, or are to be by now.
std::size_t ChannelSet::opened() const {
  return static_cast<std::size_t>(std::count_if(
      places_.begin(), places_.end(), [](const Place& place) { return !place.spare && !place.later; }));
}

bool ChannelSet::has_followers() const {
  return std::any_of(places_.begin(), places_.end(), [](const Place& place) { return place.later; });
}

bool ChannelSet::may_follow() const {
  return setup_.role == Role::kConnector && !cleared_ && rest_ == Rest::kNo && ready() != 0 && settled() &&
         has_followers();
}

void ChannelSet::await_followers(Clock::time_point now) {
  if (follow_at_ || !may_follow()) return;
  follow_at_ = followed_ ? now : now + kFirst;
}

/// As many as are up, so that they keep neither side's session long from what else there is to do; all where
/// they are wanted now, or each step takes the time of a long path.
void ChannelSet::open_followers(Clock::time_point now, bool serving) {
  follow_at_.reset();
  if (!may_follow()) return;
  if (!serving) {
    follow_at_ = now + kFirst;
    return;
  }
  const bool far = std::any_of(places_.begin(), places_.end(), [](const Place& place) {
    return place.ready && place.runner->round_trip() >= kLongPath;
  });
  std::size_t left = hurries_ || far ? places_.size() : ready();
  for (Place& place : places_) {
    if (!place.later || left == 0) continue;
    place.later = false;
    reopen(place);
    --left;
  }
  followed_ = true;
}

}  // namespace p2p::engine
