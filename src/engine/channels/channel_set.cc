// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/channel_set.h"

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
constexpr std::size_t kMostLast = 4;

/// After one that could not be opened beyond those that there were from the beginning.
constexpr std::chrono::seconds kNoMore{10};

/// What may not be opened now is looked at again after that.
constexpr std::chrono::milliseconds kNotNow{1000};

/// After that the acceptor takes one beyond those of the beginning for given up. The connector waits 2 s for
/// it (attempts.cc), and then may not come back to it.
constexpr std::chrono::seconds kPeerGivesUp{5};

}  // namespace

ChannelSet::ChannelSet(Setup setup)
    : setup_(std::move(setup)),
      lane_(std::make_shared<Lane>(Policy::of(transport().capabilities(), setup_.context->options),
                                   transport().capabilities().reopens ? setup_.want : nullptr, setup_.bulk)) {
}

std::uint32_t ChannelSet::number(const Place& place) const {
  return static_cast<std::uint32_t>(place.past * kMaxChannels +
                                    static_cast<std::size_t>(&place - places_.data()));
}

Result<std::shared_ptr<ChannelRunner>> ChannelSet::open_runner(const Rail& rail, std::uint32_t number) {
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
       .transports = setup_.transports});
  if (!channel) return tl::unexpected(channel.error());
  ChannelRunner::Setup made{rail.name, std::move(control), std::move(*channel),
                            nullptr,   setup_.fence,       std::move(port)};
  made.transport = transport().name();
  made.number = number;
  made.report = [report = setup_.report, number](const Status& status) { report(number, status); };
  const auto& workers = setup_.context->workers;
  Worker& worker = **std::min_element(workers.begin(), workers.end(),
                                      [](const auto& a, const auto& b) { return a->load() < b->load(); });
  return std::make_shared<ChannelRunner>(worker, lane_, std::move(made));
}

Result<std::vector<Bytes>> ChannelSet::open() {
  plan(setup_.context->options.max_channels);
  return open_planned();
}

Result<std::vector<Bytes>> ChannelSet::answer(const std::vector<Bytes>& offered) {
  plan(std::min<std::size_t>(offered.size(), setup_.context->options.max_channels));
  const bool peer_has_spare =
      rests_at_all() && std::any_of(offered.begin(), offered.end(), std::mem_fn(&Bytes::empty));
  // A peer that knows nothing of spare places gets as many as both open at once.
  while (!peer_has_spare && !places_.empty() && places_.back().spare) places_.pop_back();
  for (std::size_t i = 0; i != places_.size(); ++i) take_offer(places_[i], offered[i], peer_has_spare);
  return open_planned();
}

Result<std::vector<Bytes>> ChannelSet::open_planned() {
  std::vector<Bytes> addresses;
  for (Place& place : places_) {
    addresses.push_back(place.later ? wire::following() : Bytes());
    if (place.spare || place.later) continue;
    auto runner = open_runner(place.rail, number(place));
    if (!runner) return tl::unexpected(runner.error());
    place.runner = std::move(*runner);
    addresses.back() = place.runner->address();
  }
  if (addresses.empty()) return fail(ErrorCode::kUnavailable, "no interface towards the peer");
  return addresses;
}

Status ChannelSet::connect(const std::vector<Bytes>& addresses) {
  // The peer may take fewer than were offered.
  while (places_.size() > addresses.size()) {
    make_spare(places_.back());
    places_.pop_back();
  }
  attached_ = true;
  why_ = {ErrorCode::kProtocol, "the peer has spare channels alone"};
  for (std::size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (rests_at_all() && addresses[i].empty()) make_spare(place);
    if (place.spare || (place.later && addresses[i] == wire::following())) continue;
    if (place.later) return fail(ErrorCode::kProtocol, "the peer names a channel that follows others");
    if (const Status connected = place.runner->connect(addresses[i]); !connected) {
      lose(place, connected.error());
      continue;
    }
    place.met = true;
    place.runner->start();
  }
  recount();
  if (has_spare() || has_followers()) lane_->watch();
  if (std::all_of(places_.begin(), places_.end(), [](const Place& place) { return !place.runner; })) {
    return tl::unexpected(why_);
  }
  return {};
}

Result<ChannelSet::Place*> ChannelSet::find(std::uint32_t channel) {
  const std::size_t place = channel % kMaxChannels;
  if (!attached_ || place >= places_.size()) {
    return fail(ErrorCode::kProtocol, "a message for {} channel {}: there are {}", name(), channel,
                attached_ ? places_.size() : 0);
  }
  return &places_[place];
}

bool ChannelSet::reopens() const {
  const Capabilities can = transport().capabilities();
  return can.reopens && !cleared_;
}

bool ChannelSet::rests_at_all() const { return transport().capabilities().rests && !cleared_; }

std::size_t ChannelSet::ready() const {
  return static_cast<std::size_t>(
      std::count_if(places_.begin(), places_.end(), [](const Place& place) { return place.ready; }));
}

bool ChannelSet::settled() const {
  return std::all_of(places_.begin(), places_.end(),
                     [](const Place& place) { return place.ready || !place.runner; });
}

void ChannelSet::note_loss(Place& place, std::string_view why) {
  lane_->history().lost(place.rail.name, why);
  place.was_lost = true;
}

/// It may be tried again later.
void ChannelSet::lose(Place& place, const Error& why) {
  why_ = why;
  // One more was no gain. At the acceptor the peer says when it comes.
  if (place.extra && !place.ready) no_more_until_ = Clock::now() + kNoMore;
  place.spare = place.extra && (!place.ready || setup_.role == Role::kAcceptor);
  recount();
  if (place.runner) trash_.push_back(std::exchange(place.runner, nullptr));
  place.ready = place.met = false;
  place.due.reset();
  if (place.spare) {
    watch();  // looks had ended once no place was spare
  } else if (reopens() && setup_.role == Role::kConnector) {
    place.due = place.attempts.fail(Clock::now());
  }
}

ChannelSet::News ChannelSet::changed(std::uint32_t channel, const Status& status) {
  const auto found = find(channel);
  if (!found) return News::kNone;
  Place& place = **found;
  if (number(place) != channel || !place.runner) {
    if (!status) end_last(place, channel);
    return cleared_ ? News::kNone : news();
  }
  if (status) {
    if (rest_ == Rest::kAsleep) return News::kNone;  // it ends by itself
    const auto now = Clock::now();
    place.ready = true;
    place.attempts.succeed(now);
    place.due.reset();
    if (std::exchange(place.was_lost, false)) lane_->history().returned(now);
    if (!serves_ && !late_at_) late_at_ = now + setup_.context->options.keepalive;
    const bool wakes = rest_ == Rest::kWaking;
    if (wakes ? ready() == opened() : rest_ == Rest::kLost || !look_at_) stay_awake(now);
    if (place.past != 0) {
      log(wakes || place.extra || place.follows ? LogLevel::kDebug : LogLevel::kInfo,
          "{} {} is up: {} of {} channels", name(), place.rail.name, ready(), wanted());
    }
  } else {
    const bool was_ready = place.ready;
    if (was_ready) note_loss(place, status.error().message);
    lose(place, status.error());
    log(was_ready ? LogLevel::kInfo : LogLevel::kDebug, "{} {} is lost, {} of {} channels are left: {}",
        name(), place.rail.name, ready(), wanted(), status.error().message);
  }
  await_followers(Clock::now());
  return news();
}

ChannelSet::News ChannelSet::news() {
  if (lane_->closed()) return News::kLost;
  if (!serves_) {
    if (!settled()) return News::kNone;
    if (ready() == 0) return News::kLost;
    serves_ = true;
    return News::kServing;
  }
  // With channels left the lane lives on; the items of one that was lost went over to them.
  if (rest_ == Rest::kNo && ready() == 0 && lane_->runners().empty()) {
    if (!reopens()) return News::kLost;
    await_return();
  }
  return given_up() ? News::kLost : News::kNone;
}

Status ChannelSet::on(const wire::ChannelReopen& offer) {
  const auto found = find(offer.channel);
  if (!found) return tl::unexpected(found.error());
  Place& place = **found;
  const auto past = static_cast<std::uint32_t>(offer.channel / kMaxChannels);
  if (setup_.role != Role::kAcceptor || !(reopens() || place.later) || past <= place.past) {
    return fail(ErrorCode::kProtocol, "{} channel {} opened again, which was not due", name(), offer.channel);
  }
  heard_of_channels();
  // The peer's end is shut and has said so. This one gives its items back by itself, if it has not done so.
  if (place.runner && place.ready) note_loss(place, "the peer's end was lost");
  if (place.runner) place.last.emplace(number(place), std::exchange(place.runner, nullptr));
  if (place.last.size() > kMostLast) {
    trash_.push_back(std::move(place.last.extract(place.last.begin()).mapped()));
  }
  place.ready = place.met = place.spare = place.later = false;
  place.past = past;
  recount();
  auto runner = open_runner(place.rail, offer.channel);
  if (!runner) {
    setup_.send(wire::ChannelReopened{name(), offer.channel, runner.error().message, {}});
    return {};
  }
  place.runner = std::move(*runner);
  setup_.send(wire::ChannelReopened{name(), offer.channel, "", place.runner->address()});
  if (const Status connected = place.runner->connect(offer.address); !connected) {
    lose(place, connected.error());
    return {};
  }
  place.met = true;
  if (place.extra) place.due = Clock::now() + kPeerGivesUp;
  place.runner->start();
  return {};
}

Status ChannelSet::on(const wire::ChannelReopened& answer) {
  const auto found = find(answer.channel);
  if (!found) return tl::unexpected(found.error());
  Place& place = **found;
  const auto past = static_cast<std::uint32_t>(answer.channel / kMaxChannels);
  if (setup_.role != Role::kConnector || past == 0 || past > place.past ||
      (past == place.past && place.met)) {
    return fail(ErrorCode::kProtocol, "an answer about {} channel {} that was not due", name(),
                answer.channel);
  }
  if (past != place.past || !place.runner) return {};  // given up meanwhile
  heard_of_channels();
  const Status connected =
      answer.reason.empty() ? place.runner->connect(answer.address)
                            : fail(ErrorCode::kUnavailable, "the peer could not open it: {}", answer.reason);
  if (!connected) {
    lose(place, connected.error());
    return {};
  }
  place.met = true;
  place.due = place.attempts.begin(Clock::now());
  place.runner->start();
  return {};
}

Status ChannelSet::control(wire::ChannelControl message) {
  const auto found = find(message.channel);
  if (cleared_ && (!found || !(*found)->last.contains(message.channel))) return {};  // given up meanwhile
  if (!found) return tl::unexpected(found.error());
  Place& place = **found;
  const auto past = static_cast<std::uint32_t>(message.channel / kMaxChannels);
  if (past > place.past || (past == place.past && place.runner && !place.met)) {
    return fail(ErrorCode::kProtocol, "a message for {} channel {} before it was connected", name(),
                message.channel);
  }
  const auto last = place.last.find(message.channel);
  if (past == place.past && place.runner) {
    place.runner->control(std::move(message.message));
  } else if (last != place.last.end()) {
    last->second->control(std::move(message.message));
  }
  return {};
}

ChannelSet::News ChannelSet::tick(Clock::time_point now, bool serving) {
  if (leave_by_ && now >= *leave_by_) {
    leave_by_.reset();
    clear(trash_);
  }
  if (cleared_) return News::kNone;
  for (Place& place : places_) {
    if (!place.due || now < *place.due) continue;
    place.due.reset();
    if (place.runner) {
      const Error late{ErrorCode::kTimedOut, "it did not come up in time"};
      if (place.runner->give_up(late)) lose(place, late);
    } else if (!serving || place.attempts.exhausted()) {
      place.due = now + kNotNow;
    } else {
      reopen(place);
    }
  }
  if (given_up() || (wake_by_ && now >= *wake_by_ && !keep_waiting(now))) return News::kLost;
  if (look_at_ && now >= *look_at_) look_for_use(now, serving);
  if (grow_at_ && now >= *grow_at_) look_for_growth(now);
  if (follow_at_ && now >= *follow_at_) open_followers(now, serving);
  await_followers(now);
  return late_at_ && now >= *late_at_ ? hurry() : News::kNone;
}

ChannelSet::News ChannelSet::hurry() {
  if (cleared_ || serves_ || ready() == 0) return News::kNone;
  late_at_.reset();
  serves_ = true;
  return News::kServing;
}

// The peer answers, and has time for that until it is hung.
void ChannelSet::reopen(Place& place) {
  ++place.past;
  place.due.reset();
  auto runner = open_runner(place.rail, number(place));
  if (!runner) return lose(place, runner.error());
  place.runner = std::move(*runner);
  setup_.send(wire::ChannelReopen{name(), number(place), place.runner->address()});
}

std::optional<ChannelSet::Clock::time_point> ChannelSet::next_tick() const {
  if (cleared_) return leave_by_;
  std::optional<Clock::time_point> next = serves_ ? std::nullopt : late_at_;
  for (const auto& other : {look_at_, wake_by_, grow_at_, follow_at_}) {
    if (other && (!next || *other < *next)) next = other;
  }
  for (const Place& place : places_) {
    if (place.due && (!next || *place.due < *next)) next = place.due;
  }
  return next;
}

void ChannelSet::moved(const PeerPath& path) {
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

void ChannelSet::leave(Clock::time_point now) {
  cleared_ = true;
  leave_by_ = now + setup_.context->options.hung;
  for (Place& place : places_) {
    if (!place.runner) continue;
    if (place.ready) {
      place.last.emplace(number(place), std::exchange(place.runner, nullptr));
    } else {
      trash_.push_back(std::exchange(place.runner, nullptr));
    }
  }
}

// Of one that was in the place before.
void ChannelSet::end_last(Place& place, std::uint32_t channel) {
  const auto last = place.last.find(channel);
  if (last == place.last.end()) return;
  trash_.push_back(std::move(place.last.extract(last).mapped()));
}

void ChannelSet::clear(std::vector<std::shared_ptr<ChannelRunner>>& trash) {
  cleared_ = true;
  for (Place& place : places_) {
    if (place.runner) trash.push_back(std::exchange(place.runner, nullptr));
    for (auto& [number, runner] : std::exchange(place.last, {})) trash.push_back(std::move(runner));
  }
}

void ChannelSet::for_each(const std::function<void(const std::shared_ptr<ChannelRunner>&)>& visit) const {
  for (const Place& place : places_) {
    if (place.runner) visit(place.runner);
    for (const auto& [number, runner] : place.last) visit(runner);
  }
}

}  // namespace p2p::engine
