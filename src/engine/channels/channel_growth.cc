// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Spare places: channels that are opened while those that are up have much to do over a long path. The rules
// are in docs/decisions/more-streams.md.
#include <algorithm>
#include <utility>

#include "engine/channels/channel_set.h"

namespace p2p::engine {
namespace {

constexpr std::chrono::milliseconds kLook{100};

/// So many looks in a row must find much to do.
constexpr unsigned kBusyLooks = 2;

/// The acceptor asks again after as many looks as before, and as many again, up to so often.
constexpr unsigned kMostDoublings = 6;

}  // namespace

/// The places that are opened at once, then the spare ones, which the rails have in turns.
void ChannelSet::plan(std::size_t most) {
  const bool follow = transport().capabilities().others_follow;
  const auto add = [&](const Rail& rail, bool follows, bool spare) {
    if (places_.size() >= std::min(most, kMaxChannels)) return;
    places_.push_back({.rail = rail,
                       .runner = nullptr,
                       .last = {},
                       .follows = follows,
                       .later = follows,
                       .extra = spare,
                       .spare = spare,
                       .attempts = ReconnectPolicy(setup_.context->options.keepalive),
                       .due = {}});
  };
  const std::vector<Rail> rails = transport().rails(setup_.peer.path);
  for (const Rail& rail : rails) {
    const unsigned channels = transport().channels_per_rail(rail);
    for (unsigned i = 0; i != channels; ++i) add(rail, follow && i != 0, false);
  }
  if (!rests_at_all()) return;  // they would stay
  std::vector<unsigned> spare(rails.size());
  std::ranges::transform(rails, spare.begin(),
                         [&](const Rail& rail) { return transport().spare_channels(rail); });
  const unsigned most_spare = spare.empty() ? 0 : std::ranges::max(spare);
  for (unsigned i = 0; i != most_spare; ++i) {
    for (std::size_t rail = 0; rail != rails.size(); ++rail) {
      if (i < spare[rail]) add(rails[rail], false, true);
    }
  }
}

std::size_t ChannelSet::wanted() const {
  return static_cast<std::size_t>(
      std::count_if(places_.begin(), places_.end(), [](const Place& place) { return !place.spare; }));
}

void ChannelSet::recount() { lane_->expect(wanted()); }

void ChannelSet::make_spare(Place& place) {
  place.extra = place.spare = true;
  place.follows = place.later = false;
  if (!place.runner) return;
  place.runner->mute();  // its end is no loss
  trash_.push_back(std::exchange(place.runner, nullptr));
}

void ChannelSet::watch() {
  if (cleared_) return;
  const auto now = Clock::now();
  if (!grow_at_ && has_spare()) grow_at_ = now + kLook;
  if (may_follow() && (lane_->queued() != 0 || !lane_->runners().none_inflight())) {
    hurries_ = true;
    follow_at_ = now;
  }
}

void ChannelSet::look_for_growth(Clock::time_point now) {
  grow_at_.reset();
  if (!has_spare()) return;
  std::uint64_t flying = 0;
  std::chrono::microseconds round_trip{0};
  for (const Place& place : places_) {
    if (!place.runner) continue;
    flying += place.runner->pace().flying();
    round_trip = std::max(round_trip, place.runner->round_trip());
  }
  if (flying < Lane::kBulkBytes && lane_->queued() == 0) {
    busy_looks_ = 0;
    return lane_->watch();
  }
  grow_at_ = now + kLook;
  if (!serves_ || rest_ != Rest::kNo || ready() == 0) return;
  if (round_trip < kLongPath) return grow_at_.reset();  // until they have been at rest
  if (++busy_looks_ < kBusyLooks) return;
  lane_->cut_small();
  if (setup_.role == Role::kConnector) return grow();
  grow_at_ = now + kLook * (1U << std::min(busy_looks_ - kBusyLooks, kMostDoublings));
  setup_.send(wire::ChannelsWanted{name()});
}

/// All at once: where they are needed each takes several round trips to come up, and more to get going.
void ChannelSet::grow() {
  if (cleared_ || !serves_ || !settled() || Clock::now() < no_more_until_) return;
  for (Place& place : places_) {
    if (!place.spare) continue;
    place.spare = false;
    reopen(place);
  }
  recount();
}

}  // namespace p2p::engine
