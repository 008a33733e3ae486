// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// When a set of channels has none: all of them rest, or were lost, and come back.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/channels/channel_set.h"

namespace p2p::engine {

/// When any of its channels was last used; nothing while one is in use or comes up, or none is up.
std::optional<ChannelSet::Clock::time_point> ChannelSet::unused_since() const {
  std::optional<Clock::time_point> latest;
  for (const Place& place : places_) {
    if (!place.runner) continue;  // lost, and tried again later
    const auto since = place.ready ? place.runner->quiet_since() : std::nullopt;
    if (!since) return std::nullopt;
    latest = std::max(latest, since);
  }
  return latest;
}

void ChannelSet::look_for_use(Clock::time_point now, bool serving) {
  const auto idle = setup_.context->options.idle;
  const auto since = serving ? unused_since() : std::nullopt;
  look_at_ = since.value_or(now) + idle;
  if (*look_at_ > now) return;
  look_at_ = now + idle;
  if (setup_.role == Role::kConnector) return rest();
  setup_.send(wire::ChannelsRest{name()});
}

// All channels or none; the rules are in docs/decisions/idle-streams.md. What came since they were taken from
// the lane was told to `want`, whose message comes once they are closed.
void ChannelSet::rest() {
  lane_->forget_runners();
  if (!unused_since() || lane_->waits()) {
    for (const Place& place : places_) {
      if (place.runner) place.runner->rejoin();
    }
    return lane_->wake_all();
  }
  setup_.send(wire::ChannelsRest{name()});
  for (Place& place : places_) {
    if (place.runner) {
      place.runner->mute();  // its end is no loss
      trash_.push_back(std::exchange(place.runner, nullptr));
    }
    place.ready = place.met = false;
    place.due.reset();
  }
  fall_asleep();
}

void ChannelSet::fall_asleep() {
  log(LogLevel::kDebug, "{}: its {} channels rest", name(), wanted());
  for (Place& place : places_) {
    place.spare = place.extra;
    place.later = place.follows;
    // Its end, of which the peer will tell, comes while nobody waits for another one in its place.
    if ((place.spare || place.later) && place.runner)
      place.last.emplace(number(place), std::exchange(place.runner, nullptr));
  }
  recount();
  grow_at_.reset();
  busy_looks_ = 0;
  if (has_spare() || has_followers()) lane_->watch();
  follow_at_.reset();
  followed_ = hurries_ = false;
  rest_ = Rest::kAsleep;
  look_at_.reset();
  wake_by_.reset();
}

Status ChannelSet::on(const wire::ChannelsRest& /*rest*/) {
  if (!rests_at_all()) return fail(ErrorCode::kProtocol, "{} channels rest, which they never do", name());
  if (setup_.role == Role::kConnector) {
    if (rest_ == Rest::kNo && unused_since()) rest();
    return {};
  }
  // None comes to the lane any more, and those in it end by themselves: the peer's message of each follows.
  const Error rests{ErrorCode::kPeerGone, "the peer lets it rest"};
  for (Place& place : places_) {
    if (place.runner) place.runner->give_up(rests);
    place.ready = false;
  }
  lane_->forget_runners();
  fall_asleep();
  if (lane_->waits()) wake();
  return {};
}

Status ChannelSet::on(const wire::ChannelsWanted& /*wanted*/) {
  if (setup_.role != Role::kConnector || !rests_at_all()) {
    return fail(ErrorCode::kProtocol, "{} channels wanted by the side that opens them", name());
  }
  if (rest_ == Rest::kNo) {
    grow();
  } else {
    wake();
  }
  return {};
}

void ChannelSet::wake() {
  if (cleared_ || rest_ != Rest::kAsleep) return;
  // A peer that does not answer is slow, until it is hung.
  await_channels(std::max(setup_.context->options.hung, setup_.context->options.connect_timeout));
  why_ = {ErrorCode::kPeerGone, "its channels were not opened again in time"};
  if (setup_.role == Role::kAcceptor) return setup_.send(wire::ChannelsWanted{name()});
  for (Place& place : places_) {
    if (!place.spare && !place.later) reopen(place);
  }
}

// What was said first, of what ends first, counts.
void ChannelSet::await_channels(std::chrono::milliseconds time) {
  rest_ = Rest::kWaking;
  wake_by_ = std::min(wake_by_.value_or(Clock::time_point::max()), Clock::now() + time);
}

// Both sides have said that the last one is shut. The connector tries for as long as its attempts have time,
// and a peer that says nothing is slow, until it is hung.
void ChannelSet::await_return() {
  const auto now = Clock::now();
  rest_ = Rest::kLost;
  wake_by_ = now + setup_.context->options.hung;
  for (Place& place : places_) {
    const auto due = place.attempts.press(now, place.due.value_or(Clock::time_point::max()));
    if (place.due) place.due = due;
  }
}

// The peer takes part in opening them.
void ChannelSet::heard_of_channels() {
  const auto& options = setup_.context->options;
  if (rest_ == Rest::kLost) {
    wake_by_ = Clock::now() + options.hung;
  } else if (rest_ != Rest::kNo) {
    await_channels(options.connect_timeout);
  }
}

/// All were lost, and were tried for long enough.
bool ChannelSet::given_up() {
  if (rest_ != Rest::kLost || !std::all_of(places_.begin(), places_.end(), [](const Place& place) {
        return place.spare || place.later || place.attempts.exhausted();
      })) {
    return false;
  }
  why_ = {ErrorCode::kPeerGone, "none of its channels came back in time: " + why_.message};
  return true;
}

/// Time is over: it goes on with the channels that there are, if there are any.
bool ChannelSet::keep_waiting(Clock::time_point now) {
  if (ready() != 0) {
    stay_awake(now);
    return true;
  }
  if (rest_ == Rest::kLost) {
    why_ = {ErrorCode::kPeerGone, "none of its channels came back, and the peer is hung: " + why_.message};
  }
  return false;
}

void ChannelSet::stay_awake(Clock::time_point now) {
  rest_ = Rest::kNo;
  wake_by_.reset();
  for (Place& place : places_) place.attempts.relax();
  const auto idle = setup_.context->options.idle;
  if (rests_at_all() && idle.count() != 0) look_at_ = now + idle;
}

}  // namespace p2p::engine
