// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/channel_pool.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/channels/session_link.h"
#include "wire/following.h"

namespace p2p::engine {
namespace {

/// So many may be at their end in one place.
constexpr std::size_t kMostRetired = 4;

ChannelStates::Rules rules_of(const Capabilities& can, Role role, const Options& options) {
  return {.connector = role == Role::kConnector,
          .reopens = can.reopens,
          .closes_idle = can.closes_idle,
          .idle = options.idle,
          .keepalive = options.keepalive,
          .hung = options.hung,
          .connect_timeout = options.connect_timeout};
}

std::shared_ptr<Lane> make_lane(const ChannelPool::Setup& setup, const Capabilities& can) {
  const auto later = [&reactor = *setup.context->reactor](std::chrono::nanoseconds time,
                                                          std::function<void()> task) {
    reactor.post([&reactor, time, task = std::move(task)] { reactor.after(time, task); });
  };
  return std::make_shared<Lane>(Policy::of(can, setup.context->options), can.reopens ? setup.want : nullptr,
                                setup.bulk, later);
}

/// Has the lane look, on the reactor's thread, whether what a stalled channel has could go by another rail.
std::function<void()> leave_stalled(const std::shared_ptr<Lane>& lane, Reactor& reactor) {
  return [weak = std::weak_ptr(lane), &reactor] {
    reactor.post([weak] {
      if (const auto found = weak.lock()) found->runners().give_up_stalled();
    });
  };
}

Worker& least_loaded(const std::vector<std::shared_ptr<Worker>>& workers) {
  return **std::ranges::min_element(workers, {}, [](const auto& worker) { return worker->load(); });
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

ChannelPool::ChannelPool(Setup setup)
    : setup_(std::move(setup)),
      lane_(make_lane(setup_, transport().capabilities())),
      states_(rules_of(transport().capabilities(), setup_.role, setup_.context->options)) {}

Result<std::shared_ptr<ChannelRunner>> ChannelPool::open_runner(const Rail& rail, std::uint32_t number) {
  auto control = std::make_unique<SessionLink>(setup_.send, name(), number);
  auto port = setup_.make_message_port();
  auto channel = setup_.context->transports()[setup_.transport].transport->open_channel(
      {.role = setup_.role,
       .rail = rail,
       .path = setup_.peer.path,
       .local_incarnation = setup_.context->regions->incarnation(),
       .peer_incarnation = setup_.peer.incarnation,
       .peer_identity = setup_.peer.identity,
       .secret = setup_.peer.secret,
       .encrypt = setup_.peer.encrypts,
       .control = control.get(),
       .messages = port.get(),
       .port = setup_.context->port,
       .transports = setup_.transports,
       .stalls = stalls_});
  if (!channel) return tl::unexpected(channel.error());
  ChannelRunner::Setup made{rail.name, std::move(control), std::move(*channel),
                            nullptr,   setup_.fence,       std::move(port)};
  made.transport = transport().name();
  made.number = number;
  made.report = [report = setup_.report, number](const Status& status) { report(number, status); };
  return std::make_shared<ChannelRunner>(least_loaded(setup_.context->workers), lane_, std::move(made));
}

/// The channels that are opened without being asked for, then the surplus ones, which the rails have in
/// turns.
void ChannelPool::plan(std::size_t most) {
  const Capabilities can = transport().capabilities();
  const auto add = [&](const Rail& rail, Kind kind) {
    if (places_.size() >= std::min(most, kMaxChannels)) return;
    places_.push_back({.rail = rail, .runner = nullptr, .past = 0, .retired = {}});
    states_.add(kind);
  };
  const std::vector<Rail> rails = transport().rails(setup_.peer.path);
  if (rails.size() > 1) stalls_ = leave_stalled(lane_, *setup_.context->reactor);
  for (const Rail& rail : rails) {
    const unsigned channels = transport().channels_per_rail(rail);
    for (unsigned i = 0; i != channels; ++i) {
      add(rail, can.others_follow && i != 0 ? Kind::kDeferred : Kind::kFirst);
    }
  }
  if (!can.closes_idle) return;  // they would stay
  std::vector<unsigned> surplus(rails.size());
  std::ranges::transform(rails, surplus.begin(),
                         [&](const Rail& rail) { return transport().spare_channels(rail); });
  const unsigned most_surplus = surplus.empty() ? 0 : std::ranges::max(surplus);
  for (unsigned i = 0; i != most_surplus; ++i) {
    for (std::size_t rail = 0; rail != rails.size(); ++rail) {
      if (i < surplus[rail]) add(rails[rail], Kind::kSurplus);
    }
  }
}

Result<std::vector<Bytes>> ChannelPool::open() {
  plan(setup_.context->options.max_channels);
  return open_first();
}

// The acceptor keeps each channel as the connector does, as far as it has one for it.
Result<std::vector<Bytes>> ChannelPool::answer(const std::vector<Bytes>& offered) {
  plan(std::min<std::size_t>(offered.size(), setup_.context->options.max_channels));
  const bool peer_has_surplus =
      transport().capabilities().closes_idle && std::ranges::any_of(offered, std::mem_fn(&Bytes::empty));
  // A peer that has no surplus ones gets as many as both open without being asked.
  while (!peer_has_surplus && size() != 0 && states_.kind(size() - 1) == Kind::kSurplus) {
    places_.pop_back();
    states_.drop_last();
  }
  for (std::size_t i = 0; i != size(); ++i) {
    if (states_.kind(i) == Kind::kSurplus || (peer_has_surplus && offered[i].empty())) {
      states_.make(i, Kind::kSurplus);
    } else {
      states_.make(i, offered[i] == wire::following() ? Kind::kDeferred : Kind::kFirst);
    }
  }
  return open_first();
}

Result<std::vector<Bytes>> ChannelPool::open_first() {
  std::vector<Bytes> addresses;
  for (Place& place : places_) {
    const Kind kind = states_.kind(index_of(place));
    addresses.push_back(kind == Kind::kDeferred ? wire::following() : Bytes());
    if (kind != Kind::kFirst) continue;
    auto runner = open_runner(place.rail, number(place));
    if (!runner) return tl::unexpected(runner.error());
    place.runner = std::move(*runner);
    addresses.back() = place.runner->address();
    states_.on(index_of(place), ChannelEvent::kOffer, Clock::now());
  }
  if (addresses.empty()) return fail(ErrorCode::kUnavailable, "no interface towards the peer");
  return addresses;
}

Status ChannelPool::connect(const std::vector<Bytes>& addresses) {
  // The peer may take fewer than were offered.
  while (places_.size() > addresses.size()) {
    discard(places_.back());
    places_.pop_back();
    states_.drop_last();
  }
  why_ = {ErrorCode::kProtocol, "the peer has surplus channels alone"};
  for (std::size_t i = 0; i != size(); ++i) {
    if (transport().capabilities().closes_idle && addresses[i].empty()) {
      discard(places_[i]);
      states_.make(i, Kind::kSurplus);
    }
    if (states_.kind(i) == Kind::kFirst) {
      if (const Status connected = connect(places_[i], addresses[i]); !connected) {
        lose(places_[i], connected.error());
      }
    } else if (states_.kind(i) == Kind::kDeferred && addresses[i] != wire::following()) {
      return fail(ErrorCode::kProtocol, "the peer names a channel that follows others");
    }
  }
  states_.on(PoolEvent::kAttach, Clock::now());
  lane_->expect(states_.expected());
  if (states_.may_grow()) lane_->watch();
  if (std::ranges::none_of(places_, [](const Place& place) { return place.runner != nullptr; })) {
    return tl::unexpected(why_);
  }
  return {};
}

Status ChannelPool::connect(Place& place, const Bytes& address) {
  if (Status connected = place.runner->connect(address); !connected) return connected;
  states_.on(index_of(place), ChannelEvent::kConnect, Clock::now());
  place.runner->start();
  return {};
}

Result<ChannelPool::Place*> ChannelPool::find(std::uint32_t channel) {
  const std::size_t place = channel % kMaxChannels;
  const std::size_t known = states_.phase() == PoolPhase::kNegotiating ? 0 : size();
  if (place >= known) {
    return fail(ErrorCode::kProtocol, "a message for {} channel {}: there are {}", name(), channel, known);
  }
  return &places_[place];
}

/// Its end is no loss.
void ChannelPool::discard(Place& place) {
  if (!place.runner) return;
  place.runner->mute();
  trash_.push_back(std::exchange(place.runner, nullptr));
}

/// It ends by itself, while another one may come in its place.
void ChannelPool::retire(Place& place) {
  if (place.runner) place.retired.emplace(number(place), std::exchange(place.runner, nullptr));
  if (place.retired.size() > kMostRetired) end_retired(place, place.retired.begin()->first);
}

void ChannelPool::end_retired(Place& place, std::uint32_t channel) {
  const auto retired = place.retired.find(channel);
  if (retired == place.retired.end()) return;
  trash_.push_back(std::move(place.retired.extract(retired).mapped()));
}

void ChannelPool::note_loss(Place& place, std::string_view why) {
  lane_->history().lost(place.rail.name, why);
  place.was_lost = true;
}

/// It may be tried again later.
void ChannelPool::lose(Place& place, const Error& why) {
  why_ = why;
  if (place.runner) trash_.push_back(std::exchange(place.runner, nullptr));
  states_.on(index_of(place), ChannelEvent::kFail, Clock::now());
}

void ChannelPool::changed(std::uint32_t channel, const Status& status) {
  const auto found = find(channel);
  if (!found) return;
  Place& place = **found;
  if (number(place) != channel || !place.runner) {
    if (!status) end_retired(place, channel);
    return;
  }
  const std::size_t i = index_of(place);
  const Connectivity before = state(place);
  if (before == Connectivity::kDraining) {
    if (status) return;
    trash_.push_back(std::exchange(place.runner, nullptr));
    return states_.on(i, ChannelEvent::kFail, Clock::now());
  }
  if (status) {
    const auto now = Clock::now();
    const bool rare = states_.phase() != PoolPhase::kWaking && states_.kind(i) == Kind::kFirst;
    states_.on(i, ChannelEvent::kUp, now);
    if (std::exchange(place.was_lost, false)) lane_->history().returned(now);
    if (place.past == 0) return;
    log(rare ? LogLevel::kInfo : LogLevel::kDebug, "{} {} is up: {} of {} channels", name(), place.rail.name,
        states_.ready(), states_.expected());
    return;
  }
  const bool was_ready = before == Connectivity::kReady;
  if (was_ready) note_loss(place, status.error().message);
  lose(place, status.error());
  log(was_ready ? LogLevel::kInfo : LogLevel::kDebug, "{} {} is lost, {} of {} channels are left: {}", name(),
      place.rail.name, states_.ready(), states_.expected(), status.error().message);
}

Status ChannelPool::on(const wire::ChannelReopen& offer) {
  const auto found = find(offer.channel);
  if (!found) return tl::unexpected(found.error());
  Place& place = **found;
  const auto past = static_cast<std::uint32_t>(offer.channel / kMaxChannels);
  const bool may_open = transport().capabilities().reopens || state(place) == Connectivity::kAbsent;
  if (connects() || !may_open || past <= place.past) {
    return fail(ErrorCode::kProtocol, "{} channel {} opened again, which was not due", name(), offer.channel);
  }
  const auto now = Clock::now();
  states_.on(PoolEvent::kHeard, now);
  // The peer's end is shut and has said so. This one gives its items back by itself, if it has not done so.
  if (state(place) == Connectivity::kReady) note_loss(place, "the peer's end was lost");
  retire(place);
  place.past = past;
  states_.on(index_of(place), ChannelEvent::kClose, now);
  auto runner = open_runner(place.rail, offer.channel);
  if (!runner) {
    setup_.send(wire::ChannelReopened{name(), offer.channel, runner.error().message, {}});
    return {};
  }
  place.runner = std::move(*runner);
  states_.on(index_of(place), ChannelEvent::kOffer, now);
  setup_.send(wire::ChannelReopened{name(), offer.channel, "", place.runner->address()});
  if (const Status connected = connect(place, offer.address); !connected) lose(place, connected.error());
  return {};
}

Status ChannelPool::on(const wire::ChannelReopened& answer) {
  const auto found = find(answer.channel);
  if (!found) return tl::unexpected(found.error());
  Place& place = **found;
  const auto past = static_cast<std::uint32_t>(answer.channel / kMaxChannels);
  const bool was_answered = state(place) == Connectivity::kConnecting || state(place) == Connectivity::kReady;
  if (!connects() || past == 0 || past > place.past || (past == place.past && was_answered)) {
    return fail(ErrorCode::kProtocol, "an answer about {} channel {} that was not due", name(),
                answer.channel);
  }
  if (past != place.past || !place.runner) return {};  // given up meanwhile
  states_.on(PoolEvent::kHeard, Clock::now());
  const Status connected =
      answer.reason.empty() ? connect(place, answer.address)
                            : fail(ErrorCode::kUnavailable, "the peer could not open it: {}", answer.reason);
  if (!connected) lose(place, connected.error());
  return {};
}

Status ChannelPool::control(wire::ChannelControl message) {
  const auto found = find(message.channel);
  if (ended() && (!found || !(*found)->retired.contains(message.channel))) return {};  // given up meanwhile
  if (!found) return tl::unexpected(found.error());
  Place& place = **found;
  const auto past = static_cast<std::uint32_t>(message.channel / kMaxChannels);
  if (past > place.past || (past == place.past && state(place) == Connectivity::kOffered)) {
    return fail(ErrorCode::kProtocol, "a message for {} channel {} before it was connected", name(),
                message.channel);
  }
  const auto retired = place.retired.find(message.channel);
  if (past == place.past && place.runner) {
    place.runner->tell(hearing(std::move(message.message)));
  } else if (retired != place.retired.end()) {
    retired->second->tell(hearing(std::move(message.message)));
  }
  return {};
}

Status ChannelPool::on(const wire::ChannelsRest& idle) {
  if (!transport().capabilities().closes_idle) {
    return fail(ErrorCode::kProtocol, "{} channels idle, which are never closed", name());
  }
  if (connects()) {
    if (states_.phase() == PoolPhase::kServing && unused_since()) close_idle();
    return {};
  }
  for (const std::uint32_t channel : idle.channels) {
    const auto found = find(channel);
    if (!found) return tl::unexpected(found.error());
    const bool is_open = number(**found) == channel && (*found)->runner;
    if (is_open) states_.on(index_of(**found), ChannelEvent::kDrain, Clock::now());
  }
  if (!idle.channels.empty()) return {};  // they end once the peer's ends have
  // None comes to the lane any more, and those in it end by themselves: the peer's message of each follows.
  const Error closed{ErrorCode::kPeerGone, "the peer closes it, since nothing uses it"};
  for (const Place& place : places_) {
    if (place.runner) place.runner->give_up(closed);
  }
  lane_->forget_runners();
  became_idle();
  if (lane_->waits()) wake();
  return {};
}

Status ChannelPool::on(const wire::ChannelsWanted& /*wanted*/) {
  if (!connects() || !transport().capabilities().closes_idle) {
    return fail(ErrorCode::kProtocol, "{} channels wanted by the side that opens them", name());
  }
  if (states_.phase() == PoolPhase::kIdle) {
    wake();
  } else {
    states_.on(PoolEvent::kPeerWanted, Clock::now());
  }
  return {};
}

void ChannelPool::wake() {
  if (states_.phase() != PoolPhase::kIdle) return;
  states_.on(PoolEvent::kWanted, Clock::now());
  why_ = {ErrorCode::kPeerGone, "its channels were not opened again in time"};
  if (!connects()) setup_.send(wire::ChannelsWanted{name()});
}

void ChannelPool::watch() {
  const bool busy = lane_->queued() != 0 || !lane_->runners().none_inflight();
  states_.on(busy ? PoolEvent::kBusy : PoolEvent::kBulk, Clock::now());
}

/// When any of its channels was last used; nothing while one is in use or comes up, or none is up.
ChannelStates::Time ChannelPool::unused_since() const {
  ChannelStates::Time latest;
  for (const Place& place : places_) {
    if (!place.runner) continue;  // lost, and tried again later
    const auto since = state(place) == Connectivity::kReady ? place.runner->quiet_since() : std::nullopt;
    if (!since) return std::nullopt;
    latest = std::max(latest, since);
  }
  return latest;
}

ChannelStates::Traffic ChannelPool::traffic(Clock::time_point now) {
  ChannelStates::Traffic traffic{.unused_since = states_.wants_idle(now) ? unused_since() : std::nullopt};
  paths_.begin();
  for (const Place& place : places_) {
    if (place.runner) paths_.look_at(*place.runner, state(place) == Connectivity::kReady);
  }
  paths_.tell(traffic);
  traffic.busy = traffic.busy || lane_->queued() != 0;
  return traffic;
}

ChannelPool::News ChannelPool::reconcile(Clock::time_point now) {
  const auto actions =
      states_.reconcile(now, states_.wants_traffic(now) ? traffic(now) : ChannelStates::Traffic());
  for (const auto& action : actions) perform(action);
  lane_->expect(states_.expected());
  const PoolPhase before = std::exchange(told_, states_.phase());
  if (told_ == PoolPhase::kEnded && before != PoolPhase::kEnded) {
    clear(trash_);
    if (states_.ending() == ChannelStates::Ending::kNone) return News::kNone;
    const std::string_view how = text_of(states_.ending());
    if (!how.empty()) why_ = {ErrorCode::kPeerGone, std::string(how) + why_.message};
    return News::kLost;
  }
  return before < PoolPhase::kServing && told_ >= PoolPhase::kServing && !ended() ? News::kServing
                                                                                  : News::kNone;
}

void ChannelPool::perform(const ChannelStates::Action& action) {
  switch (action.what) {
    case ChannelStates::Do::kOpen: return reopen(places_[action.channel]);
    case ChannelStates::Do::kAbort: return abort(places_[action.channel]);
    case ChannelStates::Do::kCloseIdle:
      return connects() ? close_idle() : setup_.send(wire::ChannelsRest{name()});
    case ChannelStates::Do::kGiveBack:
      setup_.send(wire::ChannelsRest{name(), {number(places_[action.channel])}});
      return places_[action.channel].runner->tell(end_useless);
    case ChannelStates::Do::kAskForMore: return setup_.send(wire::ChannelsWanted{name()});
    case ChannelStates::Do::kCutSmall: return lane_->cut_small();
    case ChannelStates::Do::kWatch: return lane_->watch();
  }
}

// The peer answers, and has time for that until it is hung.
void ChannelPool::reopen(Place& place) {
  ++place.past;
  auto runner = open_runner(place.rail, number(place));
  if (!runner) return lose(place, runner.error());
  place.runner = std::move(*runner);
  setup_.send(wire::ChannelReopen{name(), number(place), place.runner->address()});
}

void ChannelPool::abort(Place& place) {
  const Error late{ErrorCode::kTimedOut, "it did not come up in time"};
  if (place.runner && place.runner->give_up(late)) lose(place, late);
}

// All channels or none; the rules are in docs/decisions/idle-streams.md. What came since they were taken from
// the lane was told to `want`, whose message comes once they are closed.
void ChannelPool::close_idle() {
  lane_->forget_runners();
  if (!unused_since() || lane_->waits()) {
    for (const Place& place : places_) {
      if (place.runner) place.runner->rejoin();
    }
    return lane_->wake_all();
  }
  setup_.send(wire::ChannelsRest{name()});
  for (Place& place : places_) discard(place);
  became_idle();
}

void ChannelPool::became_idle() {
  states_.on(PoolEvent::kIdle, Clock::now());
  lane_->expect(states_.expected());
  log(LogLevel::kDebug, "{}: its {} channels are idle", name(), states_.expected());
  if (states_.may_grow()) lane_->watch();
}

void ChannelPool::moved(const PeerPath& path) {
  if (!setup_.context->options.interfaces.empty()) return;
  const PeerPath before = std::exchange(setup_.peer.path, path);
  // A NIC that a transport finds by itself is the same by any path, and keeps its name.
  const auto was = transport().rails(before);
  const auto is = transport().rails(path);
  const bool by_path = was.size() == 1 && is.size() == 1 && was.front().name != is.front().name;
  for (Place& place : places_) {
    if (place.rail.address != before.local_address) continue;
    place.rail.address = path.local_address;
    if (by_path) place.rail.name = is.front().name;
  }
}

void ChannelPool::leave(Clock::time_point now) {
  for (Place& place : places_) {
    const bool is_up = state(place) == Connectivity::kReady || state(place) == Connectivity::kDraining;
    if (is_up) {
      retire(place);
    } else if (place.runner) {
      trash_.push_back(std::exchange(place.runner, nullptr));
    }
  }
  states_.on(PoolEvent::kLeave, now);
  told_ = states_.phase();
}

void ChannelPool::clear(std::vector<std::shared_ptr<ChannelRunner>>& trash) {
  states_.on(PoolEvent::kEnd, Clock::now());
  told_ = states_.phase();
  for (Place& place : places_) {
    if (place.runner) trash.push_back(std::exchange(place.runner, nullptr));
    for (auto& [number, runner] : std::exchange(place.retired, {})) trash.push_back(std::move(runner));
  }
}

void ChannelPool::for_each(const std::function<void(const std::shared_ptr<ChannelRunner>&)>& visit) const {
  for (const Place& place : places_) {
    if (place.runner) visit(place.runner);
    for (const auto& [number, runner] : place.retired) visit(runner);
  }
}

}  // namespace p2p::engine
