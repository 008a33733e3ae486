// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/channel_pool.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "wire/following.h"

namespace p2p::engine {
namespace {

ChannelStates::Rules rules_of(const Capabilities& can, Role role, const Options& options) {
  return {.connector = role == Role::kConnector,
          .reopens = can.reopens,
          .closes_idle = can.closes_idle,
          .idle = options.idle,
          .keepalive = options.keepalive,
          .hung = options.hung,
          .connect_timeout = options.connect_timeout};
}

/// Has a channel take a message of its twin.
std::function<Status(Channel&)> hearing(Bytes message) {
  return [message = std::move(message)](Channel& channel) { return channel.on_control(message); };
}

/// Has one end as if it were lost. As when idle channels are closed, the peer is told before; what is under
/// way goes again over others.
Status end_useless(Channel& channel) {
  channel.give_up({ErrorCode::kPeerGone, "closed, since one more added nothing"});
  return {};
}

/// What goes before the reason of the last channel.
std::string_view text_of(ChannelStates::Ending ending) {
  switch (ending) {
    case ChannelStates::Ending::kExhausted: return "none of its channels came back in time: ";
    case ChannelStates::Ending::kHung: return "none of its channels came back, and the peer is hung: ";
    default: return "";
  }
}

}  // namespace

ChannelPool::ChannelPool(Setup setup, Runners& ending)
    : maker_(std::move(setup)),
      lane_(*maker_.lane()),
      send_(maker_.send()),
      states_(rules_of(can(), maker_.role(), maker_.options())),
      ending_(ending) {}

Result<std::vector<Bytes>> ChannelPool::open() { return open(maker_.plan(kMaxChannels)); }

Result<std::vector<Bytes>> ChannelPool::answer(const std::vector<Bytes>& offered) {
  return open(maker_.plan_for(offered));
}

Result<std::vector<Bytes>> ChannelPool::open(const std::vector<Kind>& kinds) {
  std::vector<Bytes> addresses;
  for (const Kind kind : kinds) {
    ChannelPlace& place = places_.emplace_back(size(), states_, ending_);
    states_.add(kind);
    addresses.push_back(kind == Kind::kDeferred ? wire::following() : Bytes());
    if (kind != Kind::kFirst) continue;
    auto address = make(place);
    if (!address) return tl::unexpected(address.error());
    addresses.back() = std::move(*address);
  }
  if (addresses.empty()) return fail(ErrorCode::kUnavailable, "no interface towards the peer");
  return addresses;
}

/// Its channel, to be offered by this address.
Result<Bytes> ChannelPool::make(ChannelPlace& place) {
  auto runner = maker_.make(place.number());
  if (!runner) return tl::unexpected(runner.error());
  return place.offer(std::move(*runner));
}

Status ChannelPool::connect(const std::vector<Bytes>& addresses) {
  // The peer may take fewer than were offered.
  while (places_.size() > addresses.size()) {
    places_.back().discard();
    places_.pop_back();
    states_.drop_last();
  }
  why_ = {ErrorCode::kProtocol, "the peer has surplus channels alone"};
  for (std::size_t i = 0; i != size(); ++i) {
    if (can().closes_idle && addresses[i].empty()) {
      places_[i].discard();
      states_.make(i, Kind::kSurplus);
    }
    if (states_.kind(i) == Kind::kFirst) {
      if (const Status connected = places_[i].connect(addresses[i]); !connected) {
        lose(places_[i], connected.error());
      }
    } else if (states_.kind(i) == Kind::kDeferred && addresses[i] != wire::following()) {
      return fail(ErrorCode::kProtocol, "the peer names a channel that follows others");
    }
  }
  states_.on(PoolEvent::kAttach, Clock::now());
  lane_.expect(states_.expected());
  if (states_.may_grow()) lane_.watch();
  if (std::ranges::none_of(places_, [](const ChannelPlace& place) { return place.runner() != nullptr; })) {
    return tl::unexpected(why_);
  }
  return {};
}

Result<ChannelPlace*> ChannelPool::find(std::uint32_t channel) {
  const std::size_t index = channel % kMaxChannels;
  const std::size_t known = states_.phase() == PoolPhase::kNegotiating ? 0 : size();
  if (index >= known) {
    return fail(ErrorCode::kProtocol, "a message for {} channel {}: there are {}", name(), channel, known);
  }
  return &places_[index];
}

void ChannelPool::note_loss(ChannelPlace& place, std::string_view why) {
  lane_.history().lost(maker_.rail(place.index()), why);
  place.note_loss();
}

/// It may be tried again later.
void ChannelPool::lose(ChannelPlace& place, const Error& why) {
  why_ = why;
  place.fail();
}

void ChannelPool::changed(std::uint32_t channel, const Status& status) {
  const auto found = find(channel);
  if (!found) return;
  ChannelPlace& place = **found;
  if (place.number() != channel || !place.runner()) {
    if (!status) place.end_retired(channel);
    return;
  }
  const std::string& rail = maker_.rail(place.index());
  const Connectivity before = place.state();
  if (before == Connectivity::kDraining) {
    if (!status) place.fail();
    return;
  }
  if (status) {
    const bool rare = states_.phase() != PoolPhase::kWaking && states_.kind(place.index()) == Kind::kFirst;
    place.on(ChannelEvent::kUp);
    if (place.comes_back()) lane_.history().returned();
    if (place.is_first()) return;
    log(rare ? LogLevel::kInfo : LogLevel::kDebug, "{} {} is up: {} of {} channels", name(), rail,
        states_.ready(), states_.expected());
    return;
  }
  const bool was_ready = before == Connectivity::kReady;
  if (was_ready) note_loss(place, status.error().message);
  lose(place, status.error());
  log(was_ready ? LogLevel::kInfo : LogLevel::kDebug, "{} {} is lost, {} of {} channels are left: {}", name(),
      rail, states_.ready(), states_.expected(), status.error().message);
}

Status ChannelPool::on(const wire::ChannelReopen& offer) {
  const auto found = find(offer.channel);
  if (!found) return tl::unexpected(found.error());
  ChannelPlace& place = **found;
  const bool may_open = can().reopens || place.state() == Connectivity::kAbsent;
  if (connects() || !may_open || offer.channel <= place.number()) {
    return fail(ErrorCode::kProtocol, "{} channel {} opened again, which was not due", name(), offer.channel);
  }
  states_.on(PoolEvent::kHeard, Clock::now());
  // The peer's end is shut and has said so. This one gives its items back by itself, if it has not done so.
  if (place.state() == Connectivity::kReady) note_loss(place, "the peer's end was lost");
  place.renew(offer.channel);
  place.on(ChannelEvent::kClose);
  const auto address = make(place);
  send_(address ? wire::ChannelReopened{name(), offer.channel, "", *address}
                : wire::ChannelReopened{name(), offer.channel, address.error().message, {}});
  if (!address) return {};
  if (const Status connected = place.connect(offer.address); !connected) lose(place, connected.error());
  return {};
}

Status ChannelPool::on(const wire::ChannelReopened& answer) {
  const auto found = find(answer.channel);
  if (!found) return tl::unexpected(found.error());
  ChannelPlace& place = **found;
  const bool was_answered =
      place.state() == Connectivity::kConnecting || place.state() == Connectivity::kReady;
  const bool is_last = answer.channel == place.number();
  if (!connects() || answer.channel < kMaxChannels || answer.channel > place.number() ||
      (is_last && was_answered)) {
    return fail(ErrorCode::kProtocol, "an answer about {} channel {} that was not due", name(),
                answer.channel);
  }
  if (!is_last || !place.runner()) return {};  // given up meanwhile
  states_.on(PoolEvent::kHeard, Clock::now());
  const Status connected =
      answer.reason.empty() ? place.connect(answer.address)
                            : fail(ErrorCode::kUnavailable, "the peer could not open it: {}", answer.reason);
  if (!connected) lose(place, connected.error());
  return {};
}

Status ChannelPool::control(wire::ChannelControl message) {
  const auto found = find(message.channel);
  const auto runner = found ? (*found)->find(message.channel) : nullptr;
  if (ended() && !runner) return {};  // given up meanwhile
  if (!found) return tl::unexpected(found.error());
  const ChannelPlace& place = **found;
  const bool is_offered = message.channel == place.number() && place.state() == Connectivity::kOffered;
  if (message.channel > place.number() || is_offered) {
    return fail(ErrorCode::kProtocol, "a message for {} channel {} before it was connected", name(),
                message.channel);
  }
  if (runner) runner->tell(hearing(std::move(message.message)));
  return {};
}

Status ChannelPool::on(const wire::ChannelsRest& idle) {
  if (!can().closes_idle) {
    return fail(ErrorCode::kProtocol, "{} channels idle, which are never closed", name());
  }
  if (connects()) {
    if (states_.phase() == PoolPhase::kServing && unused_since()) close_idle();
    return {};
  }
  for (const std::uint32_t channel : idle.channels) {
    const auto found = find(channel);
    if (!found) return tl::unexpected(found.error());
    const bool is_open = (*found)->number() == channel && (*found)->runner();
    if (is_open) (*found)->on(ChannelEvent::kDrain);
  }
  if (!idle.channels.empty()) return {};  // they end once the peer's ends have
  // None comes to the lane any more, and those in it end by themselves: the peer's message of each follows.
  const Error closed{ErrorCode::kPeerGone, "the peer closes it, since nothing uses it"};
  for (const ChannelPlace& place : places_) {
    if (place.runner()) place.runner()->give_up(closed);
  }
  lane_.forget_runners();
  became_idle();
  if (lane_.waits()) wake();
  return {};
}

Status ChannelPool::on(const wire::ChannelsWanted& /*wanted*/) {
  if (!connects() || !can().closes_idle) {
    return fail(ErrorCode::kProtocol, "{} channels wanted by the side that opens them", name());
  }
  states_.on(PoolEvent::kPeerWanted, Clock::now());
  return {};
}

void ChannelPool::wake() {
  if (states_.phase() != PoolPhase::kIdle) return;
  states_.on(PoolEvent::kWanted, Clock::now());
  if (!connects()) send_(wire::ChannelsWanted{name()});
}

void ChannelPool::watch() {
  const bool busy = lane_.queued() != 0 || !lane_.runners().none_inflight();
  states_.on(busy ? PoolEvent::kBusy : PoolEvent::kBulk, Clock::now());
}

/// When any of its channels was last used; nothing while one is in use or comes up, or none is up.
ChannelStates::Time ChannelPool::unused_since() const {
  ChannelStates::Time latest;
  for (const ChannelPlace& place : places_) {
    if (!place.runner()) continue;  // lost, and tried again later
    const auto since = place.state() == Connectivity::kReady ? place.runner()->quiet_since() : std::nullopt;
    if (!since) return std::nullopt;
    latest = std::max(latest, since);
  }
  return latest;
}

ChannelStates::Traffic ChannelPool::traffic(Clock::time_point now) {
  ChannelStates::Traffic traffic{.unused_since = states_.wants_idle(now) ? unused_since() : std::nullopt};
  paths_.begin();
  for (const ChannelPlace& place : places_) {
    if (place.runner()) paths_.look_at(*place.runner(), place.state() == Connectivity::kReady);
  }
  paths_.tell(traffic);
  traffic.busy = traffic.busy || lane_.queued() != 0;
  return traffic;
}

void ChannelPool::reconcile(Clock::time_point now) {
  const auto actions =
      states_.reconcile(now, states_.wants_traffic(now) ? traffic(now) : ChannelStates::Traffic());
  for (const auto& action : actions) perform(action);
  lane_.expect(states_.expected());
  if (states_.phase() == PoolPhase::kEnded) clear();
}

Error ChannelPool::why() const {
  const std::string_view how = text_of(states_.ending());
  return how.empty() ? why_ : Error{ErrorCode::kPeerGone, std::string(how) + why_.message};
}

void ChannelPool::perform(const ChannelStates::Action& action) {
  switch (action.what) {
    case ChannelStates::Do::kOpen: return reopen(places_[action.channel]);
    case ChannelStates::Do::kAbort: return abort(places_[action.channel]);
    case ChannelStates::Do::kCloseIdle: return connects() ? close_idle() : send_(wire::ChannelsRest{name()});
    case ChannelStates::Do::kGiveBack:
      send_(wire::ChannelsRest{name(), {places_[action.channel].number()}});
      return places_[action.channel].runner()->tell(end_useless);
    case ChannelStates::Do::kAskForMore: return send_(wire::ChannelsWanted{name()});
    case ChannelStates::Do::kCutSmall: return lane_.cut_small();
    case ChannelStates::Do::kWatch: return lane_.watch();
  }
}

// The peer answers, and has time for that until it is hung.
void ChannelPool::reopen(ChannelPlace& place) {
  place.renew(place.number() + static_cast<std::uint32_t>(kMaxChannels));
  const auto address = make(place);
  if (!address) return lose(place, address.error());
  send_(wire::ChannelReopen{name(), place.number(), *address});
}

void ChannelPool::abort(ChannelPlace& place) {
  const Error late{ErrorCode::kTimedOut, "it did not come up in time"};
  if (place.runner() && place.runner()->give_up(late)) lose(place, late);
}

// All channels or none; the rules are in docs/decisions/idle-streams.md. What came since they were taken from
// the lane was told to `want`, whose message comes once they are closed.
void ChannelPool::close_idle() {
  lane_.forget_runners();
  if (!unused_since() || lane_.waits()) {
    for (const ChannelPlace& place : places_) {
      if (place.runner()) place.runner()->rejoin();
    }
    return lane_.wake_all();
  }
  send_(wire::ChannelsRest{name()});
  for (ChannelPlace& place : places_) place.discard();
  became_idle();
}

void ChannelPool::became_idle() {
  states_.on(PoolEvent::kIdle, Clock::now());
  why_ = {ErrorCode::kPeerGone, "its channels were not opened again in time"};
  lane_.expect(states_.expected());
  log(LogLevel::kDebug, "{}: its {} channels are idle", name(), states_.expected());
  if (states_.may_grow()) lane_.watch();
}

void ChannelPool::leave(Clock::time_point now) {
  for (ChannelPlace& place : places_) {
    const bool is_up = place.state() == Connectivity::kReady || place.state() == Connectivity::kDraining;
    is_up ? place.retire() : place.drop();
  }
  states_.on(PoolEvent::kLeave, now);
}

void ChannelPool::clear() {
  states_.on(PoolEvent::kEnd, Clock::now());
  for (ChannelPlace& place : places_) place.clear();
}

void ChannelPool::add_to(Runners& runners) const {
  for (const ChannelPlace& place : places_) place.add_to(runners);
}

}  // namespace p2p::engine
