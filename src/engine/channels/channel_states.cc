// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/channel_states.h"

#include <algorithm>
#include <utility>

#include "transport/channel.h"

namespace p2p::engine {
namespace {

using State = Connectivity;
using Phase = PoolPhase;

/// What comes first on a connection, which is mostly waited for, goes before deferred channels.
constexpr std::chrono::milliseconds kBeforeDeferred{10};

/// Whether surplus channels would help is looked at so often; so many looks in a row must find much to do.
constexpr std::chrono::milliseconds kLook = GrowthTrial::kLook;
constexpr unsigned kBusyLooks = 2;

/// Since the last look: the peer's work goes on.
constexpr std::uint64_t kPeerAtWork = std::uint64_t{64} << 10;

/// The acceptor asks again after as many looks as before, and as many again, up to so often.
constexpr unsigned kMostDoublings = 6;

/// After a surplus channel that could not be opened.
constexpr std::chrono::seconds kHold{10};

/// What may not be opened now is looked at again after that.
constexpr std::chrono::milliseconds kNotNow{1000};

/// After that the acceptor takes a surplus channel for given up. The connector waits 2 s for it
/// (ReconnectPolicy), and then may not come back to it.
constexpr std::chrono::seconds kPeerGivesUp{5};

}  // namespace

void ChannelStates::add(Kind kind) {
  channels_.push_back(
      {.kind = kind, .state = State::kAbsent, .deadline = {}, .policy = ReconnectPolicy(rules_.keepalive)});
}

std::size_t ChannelStates::count(Connectivity state) const {
  return static_cast<std::size_t>(std::ranges::count(channels_, state, &Channel::state));
}

/// How many there are of this kind and those before it.
std::size_t ChannelStates::up_to(Kind kind) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(channels_, [&](const Channel& channel) { return channel.kind <= kind; }));
}

std::size_t ChannelStates::expected() const {
  return static_cast<std::size_t>(std::ranges::count_if(channels_, [](const Channel& channel) {
    return channel.kind != Kind::kSurplus ||
           (channel.state != State::kAbsent && channel.state != State::kDraining);
  }));
}

bool ChannelStates::may_grow() const {
  return std::ranges::any_of(channels_, [](const Channel& channel) {
    return channel.kind != Kind::kFirst && channel.state == State::kAbsent;
  });
}

/// The connector does, and both sides serve.
bool ChannelStates::opens() const { return rules_.connector && peer_serves_ && !ended(); }

bool ChannelStates::settled() const {
  return std::ranges::none_of(channels_, [](const Channel& one) { return is_on_its_way(one.state); });
}

/// This side is still to open some.
bool ChannelStates::has_deferred() const { return rules_.connector && target_ < up_to(Kind::kDeferred); }

/// Deferred channels are opened beside others that are up, while none is on its way.
bool ChannelStates::may_raise() const {
  return has_deferred() && phase_ == Phase::kServing && ready() != 0 && settled();
}

AfterFailure ChannelStates::after_failure(const Channel& channel) const {
  if (!rules_.reopens) return AfterFailure::kNever;
  // One more was no gain. At the acceptor the peer says when it comes.
  const bool gives_up = channel.kind == Kind::kSurplus && channel.state != State::kReady;
  return rules_.connector && !gives_up ? AfterFailure::kRetry : AfterFailure::kForget;
}

void ChannelStates::on(std::size_t channel, ChannelEvent event, Clock::time_point now) {
  Channel& one = channels_[channel];
  const State before = one.state;
  one.state = next_state(before, event, after_failure(one));
  if (event == ChannelEvent::kConnect && one.state == State::kConnecting) {
    one.deadline.reset();
    if (phase_ == Phase::kNegotiating) return;
    if (rules_.connector) {
      one.deadline = one.policy.begin(now);
    } else if (one.kind == Kind::kSurplus) {
      one.deadline = now + kPeerGivesUp;
    }
  }
  if (one.state == before) return;
  if (event != ChannelEvent::kConnect) one.deadline.reset();
  if (event == ChannelEvent::kFail) failed(one, before, now);
  if (event != ChannelEvent::kUp) return;
  one.policy.succeed(now);
  if (phase_ == Phase::kStarting && !deadline_) deadline_ = now + rules_.keepalive;
  if (phase_ == Phase::kInterrupted) serve(now);
}

void ChannelStates::make(std::size_t channel, Kind kind) {
  channels_[channel].kind = kind;
  channels_[channel].state = State::kAbsent;
}

void ChannelStates::failed(Channel& channel, Connectivity before, Clock::time_point now) {
  if (channel.state == State::kBackoff) channel.deadline = channel.policy.fail(now);
  if (channel.kind != Kind::kSurplus || before == State::kDraining) return;
  if (channel.state == State::kAbsent && rules_.connector && target_ != 0) --target_;
  if (before != State::kReady) hold_until_ = now + kHold;
  if (channel.state == State::kAbsent && !raise_at_) raise_at_ = now + kLook;
}

void ChannelStates::on(PoolEvent event, Clock::time_point now) {
  const Phase before = std::exchange(phase_, next_phase(phase_, event, ready() != 0));
  if (ended() && event != PoolEvent::kLeave && event != PoolEvent::kEnd) return;
  switch (event) {
    case PoolEvent::kAttach:
      if (phase_ != before) target_ = up_to(Kind::kFirst);
      break;
    case PoolEvent::kPeerServes:
      peer_serves_ = true;
      if (has_deferred()) raise_at_ = now + kBeforeDeferred;
      break;
    case PoolEvent::kHurry:
      if (phase_ != before) serve(now);
      break;
    case PoolEvent::kBusy:
      if (may_raise()) target_ = up_to(Kind::kDeferred);
      [[fallthrough]];
    case PoolEvent::kBulk:
      if (!raise_at_ && may_grow() && !has_deferred()) raise_at_ = now + kLook;
      break;
    case PoolEvent::kPeerWanted:
      peer_busy_ = before == Phase::kServing;
      if (peer_busy_ && may_grow() && !raise_at_) raise_at_ = now;
      [[fallthrough]];
    case PoolEvent::kWanted:
      // A peer that does not answer is slow, until it is hung.
      if (before == Phase::kIdle) await_deadline(now + std::max(rules_.hung, rules_.connect_timeout));
      break;
    case PoolEvent::kIdle:
      if (phase_ == Phase::kIdle) close_all(rules_.connector ? ChannelEvent::kClose : ChannelEvent::kDrain);
      break;
    case PoolEvent::kHeard: heard(now); break;
    case PoolEvent::kLeave:
      close_all(ChannelEvent::kDrain);
      deadline_ = now + rules_.hung;
      break;
    case PoolEvent::kEnd: close_all(ChannelEvent::kClose); break;
  }
  if (before == Phase::kIdle && phase_ == Phase::kWaking) target_ = up_to(Kind::kFirst);
}

void ChannelStates::close_all(ChannelEvent how) {
  for (std::size_t i = 0; i != size(); ++i) on(i, how, {});
  target_ = 0;
  busy_looks_ = 0;
  peer_busy_ = false;
  trial_.stop({}, 0);
  deadline_.reset();
  lower_at_.reset();
  raise_at_.reset();
}

/// What was said first, of what ends first, counts.
void ChannelStates::await_deadline(Clock::time_point until) {
  deadline_ = std::min(deadline_.value_or(until), until);
}

void ChannelStates::heard(Clock::time_point now) {
  if (phase_ == Phase::kInterrupted) deadline_ = now + rules_.hung;
  if (phase_ == Phase::kWaking) await_deadline(now + rules_.connect_timeout);
}

void ChannelStates::serve(Clock::time_point now) {
  phase_ = Phase::kServing;
  deadline_.reset();
  for (Channel& channel : channels_) channel.policy.relax();
  if (rules_.closes_idle && rules_.idle.count() != 0) lower_at_ = now + rules_.idle;
}

void ChannelStates::end(Ending why) {
  phase_ = Phase::kEnded;
  ending_ = why;
  deadline_.reset();
}

/// Both sides have said that the last one is shut. The connector tries for as long as its attempts have time,
/// and a peer that says nothing is slow, until it is hung.
void ChannelStates::interrupt(Clock::time_point now) {
  phase_ = Phase::kInterrupted;
  deadline_ = now + rules_.hung;
  for (Channel& channel : channels_) {
    const auto due = channel.policy.press(now, channel.deadline.value_or(Clock::time_point::max()));
    if (channel.deadline) channel.deadline = due;
  }
}

/// All that are to be open were tried for long enough.
bool ChannelStates::exhausted() const {
  return rules_.connector && std::ranges::all_of(channels_, [](const Channel& one) {
           return one.state == State::kAbsent || one.policy.exhausted();
         });
}

void ChannelStates::grow(Clock::time_point now) {
  if (!rules_.connector || phase_ != Phase::kServing || !settled()) return;
  if (hold_until_ && now < *hold_until_) return;
  target_ = size();
  trial_.hold(now);  // one that began while the path was full would give them back
}

std::vector<ChannelStates::Action> ChannelStates::reconcile(Clock::time_point now, const Traffic& traffic) {
  std::vector<Action> actions;
  if (phase_ == Phase::kLeaving && deadline_ && now >= *deadline_) end(Ending::kNone);
  if (ended()) return actions;
  check_channels(now, actions);
  check_phase(now);
  if (ended()) return {};
  check_idle(now, traffic, actions);
  if (!actions.empty() && actions.back().what == Do::kCloseIdle) return actions;  // whether they are decides
  check_growth(now, traffic, actions);
  open_missing(actions);
  return actions;
}

void ChannelStates::check_channels(Clock::time_point now, std::vector<Action>& actions) {
  for (std::size_t i = 0; i != size(); ++i) {
    Channel& channel = channels_[i];
    if (!channel.deadline || now < *channel.deadline) continue;
    if (channel.state == State::kConnecting) {
      channel.deadline.reset();
      actions.push_back({Do::kAbort, i});
    } else if (!opens() || channel.policy.exhausted()) {
      channel.deadline = now + kNotNow;
    } else {
      on(i, ChannelEvent::kOffer, now);
      actions.push_back({Do::kOpen, i});
    }
  }
}

void ChannelStates::check_phase(Clock::time_point now) {
  if (phase_ == Phase::kStarting && settled()) return ready() != 0 ? serve(now) : end(Ending::kFailed);
  // With channels left the transport serves on; the work of one that was lost went over to them.
  if (phase_ == Phase::kServing && ready() == 0) {
    if (!rules_.reopens) return end(Ending::kFailed);
    interrupt(now);
  }
  if (phase_ == Phase::kInterrupted && exhausted()) return end(Ending::kExhausted);
  if (phase_ == Phase::kWaking && ready() >= target_) return serve(now);
  if (deadline_ && now >= *deadline_) check_deadline(now);
}

/// Time is over: it goes on with the channels that there are, if there are any.
void ChannelStates::check_deadline(Clock::time_point now) {
  if (ready() != 0) return serve(now);
  if (phase_ == Phase::kStarting) {
    deadline_.reset();  // one was up; the end of the others decides
  } else {
    end(phase_ == Phase::kInterrupted ? Ending::kHung : Ending::kTimedOut);
  }
}

void ChannelStates::check_idle(Clock::time_point now, const Traffic& traffic, std::vector<Action>& actions) {
  if (!lower_at_ || now < *lower_at_) return;
  const Time since = peer_serves_ ? traffic.unused_since : std::nullopt;
  lower_at_ = since.value_or(now) + rules_.idle;
  if (*lower_at_ > now) return;
  lower_at_ = now + rules_.idle;
  actions.push_back({Do::kCloseIdle});
}

/// Deferred channels first: as many as are up, so that they keep neither side's session long from what else
/// there is to do; all where each step would take the time of a long path.
void ChannelStates::check_growth(Clock::time_point now, const Traffic& traffic,
                                 std::vector<Action>& actions) {
  if (raise_at_ && now >= *raise_at_) {
    raise_at_.reset();
    const std::size_t most = up_to(Kind::kDeferred);
    if (may_raise()) {
      if (!peer_serves_) {
        raise_at_ = now + kBeforeDeferred;
      } else {
        target_ = traffic.round_trip >= kLongPath ? most : std::min(most, target_ + ready());
        if (target_ == most && up_to(Kind::kSurplus) != most) raise_at_ = now + kLook;
      }
    } else if (!has_deferred()) {
      look_at_load(now, traffic, actions);
    }
  }
  if (may_raise() && !raise_at_) {
    raise_at_ = target_ > up_to(Kind::kFirst) ? now : now + kBeforeDeferred;
  }
}

void ChannelStates::look_at_load(Clock::time_point now, const Traffic& traffic,
                                 std::vector<Action>& actions) {
  const std::uint64_t moved = traffic.moved - std::exchange(moved_, traffic.moved);
  // Where the path is full already only a trial tells whether more help, as over a short one.
  const bool is_long = traffic.round_trip >= kLongPath && !traffic.fills_path;
  if (expected() == size() && (is_long || !trial_.runs())) return;
  const bool asked = std::exchange(peer_busy_, peer_busy_ && !is_long && moved >= kPeerAtWork);
  if (!traffic.busy && !(asked && (is_long || peer_busy_))) {
    busy_looks_ = 0;
    give_back(trial_.stop(now, ready()), actions);
    return actions.push_back({Do::kWatch});
  }
  raise_at_ = now + kLook;
  if (phase_ != Phase::kServing || ready() == 0) return;
  if (is_long && asked) return grow(now);
  if (!is_long && rules_.connector) return look_at_short_path(now, traffic, actions);
  if (++busy_looks_ < kBusyLooks) return;
  if (is_long) actions.push_back({Do::kCutSmall});
  if (rules_.connector) return grow(now);
  raise_at_ = now + kLook * (1U << std::min(busy_looks_ - kBusyLooks, kMostDoublings));
  if (is_long || traffic.path_bound) actions.push_back({Do::kAskForMore});
}

void ChannelStates::look_at_short_path(Clock::time_point now, const Traffic& traffic,
                                       std::vector<Action>& actions) {
  busy_looks_ = 0;
  if (hold_until_ && now < *hold_until_) trial_.hold(*hold_until_);
  const auto step =
      trial_.look({now, traffic.moved, traffic.path_bound, ready(), size() - open(), settled()});
  // Over a long path that will not stay full all are opened at once.
  raise_at_ = traffic.fills_path ? now + kLook : step.next;
  target_ += step.add;
  if (step.gained) actions.push_back({Do::kCutSmall});
  give_back(step.give_back, actions);
}

/// The surplus ones that were opened last.
void ChannelStates::give_back(std::size_t count, std::vector<Action>& actions) {
  for (std::size_t i = size(); i != 0 && count != 0; --i) {
    Channel& channel = channels_[i - 1];
    if (channel.kind != Kind::kSurplus || channel.state != State::kReady) continue;
    channel.state = State::kDraining;
    actions.push_back({Do::kGiveBack, i - 1});
    --target_;
    --count;
  }
}

void ChannelStates::open_missing(std::vector<Action>& actions) {
  if (!opens() || (phase_ != Phase::kServing && phase_ != Phase::kWaking)) return;
  std::size_t opened = open();
  for (const Kind kind : {Kind::kFirst, Kind::kDeferred, Kind::kSurplus}) {
    for (std::size_t i = 0; i != size() && opened < target_; ++i) {
      if (channels_[i].kind != kind || channels_[i].state != State::kAbsent) continue;
      channels_[i].state = State::kOffered;
      actions.push_back({Do::kOpen, i});
      ++opened;
    }
  }
}

bool ChannelStates::wants_traffic(Clock::time_point now) const {
  return !ended() && (wants_idle(now) || (raise_at_ && now >= *raise_at_));
}

ChannelStates::Time ChannelStates::next_deadline() const {
  Time next = deadline_;
  if (ended()) return next;
  const auto take = [&](const Time& other) {
    if (other && (!next || *other < *next)) next = other;
  };
  take(lower_at_);
  take(raise_at_);
  for (const Channel& channel : channels_) take(channel.deadline);
  return next;
}

}  // namespace p2p::engine
