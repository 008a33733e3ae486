// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/lane_set.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "wire/encode.h"

namespace p2p::engine {

LaneSet::LaneSet(std::shared_ptr<Context> context, SendMessage send, std::function<void()> changed,
                 MakeMessagePort make_message_port)
    : context_(std::move(context)),
      send_(std::move(send)),
      changed_(std::move(changed)),
      router_(std::make_shared<Router>(context_->transports(), context_->options.required)),
      fence_(std::make_shared<Fence>(*context_->reactor, context_->options.keepalive)),
      make_message_port_(std::move(make_message_port)),
      entries_(context_->transports().size()) {}

void LaneSet::start(Role role, const SessionPeer& peer) {
  {
    MutexLock lock(mutex_);
    role_ = role;
    peer_ = peer;
    started_ = true;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      Entry& entry = entries_[i];
      const TransportSlot& own = context_->transports()[i];
      if (own.unusable) {
        router_->close(i, *own.unusable);
        continue;
      }
      for (const wire::TransportStatus& theirs : peer.introduction.transports) {
        if (theirs.name != own.transport->name()) continue;
        if (theirs.reason.empty()) {
          entry.on(LaneEvent::kShare);
          router_->await(i);
        } else {
          router_->close(i, "the peer cannot use it: " + theirs.reason.text());
        }
      }
    }
    dirty_ = true;
  }
  sweep();
}

bool LaneSet::offer_next() {
  {
    MutexLock lock(mutex_);
    const auto next = std::find_if(entries_.begin(), entries_.end(),
                                   [](const Entry& entry) { return entry.state == LaneState::kExpected; });
    if (closed_ || next == entries_.end()) return false;
    make_channels(*next);
    auto addresses = next->channels->open();
    if (addresses) {
      next->on(LaneEvent::kOffer);
      send_(wire::ChannelOffer{name_of(*next), std::move(*addresses)});
    } else {
      give_up(*next, addresses.error());
    }
    dirty_ = true;
  }
  sweep();
  return true;
}

std::vector<std::string> LaneSet::of_both() const {
  std::vector<std::string> names;
  for (const Entry& entry : entries_) {
    if (entry.state != LaneState::kUnshared && !is_given_up(entry.state)) names.push_back(name_of(entry));
  }
  return names;
}

void LaneSet::make_channels(Entry& entry) {
  const std::size_t index = index_of(entry);
  // Hands what becomes of a channel over to the reactor's thread.
  const auto report = [weak = weak_from_this(), &reactor = *context_->reactor, index](std::uint32_t channel,
                                                                                      const Status& status) {
    reactor.post([weak, index, channel, status] {
      if (const auto lanes = weak.lock()) lanes->channel_changed(index, channel, status);
    });
  };
  const auto on_reactor = [weak = weak_from_this(),
                           &reactor = *context_->reactor](void (ChannelPool::*call)()) {
    return [weak, &reactor, call] {
      reactor.post([weak, call] {
        if (const auto lanes = weak.lock()) lanes->tell_all(call);
      });
    };
  };
  entry.channels = std::make_unique<ChannelPool>(
      ChannelPool::Setup{context_, index, role_, peer_, of_both(), send_, make_message_port_, fence_, report,
                         on_reactor(&ChannelPool::wake), on_reactor(&ChannelPool::watch)});
}

/// What ends `before` has not come yet.
bool LaneSet::may_come(const Entry& entry, LaneState before) {
  return entry.state == before || entry.state == LaneState::kGivenUpEarly;
}

Status LaneSet::on(const wire::ChannelOffer& offer) {
  {
    MutexLock lock(mutex_);
    if (closed_) return {};
    Entry* entry = find(offer.transport);
    if (role_ != Role::kAcceptor || entry == nullptr || !may_come(*entry, LaneState::kExpected) ||
        offer.addresses.empty() || offer.addresses.size() > kMaxChannels) {
      return fail(ErrorCode::kProtocol, "an offer of {} {} channels that was not due", offer.addresses.size(),
                  offer.transport);
    }
    entry->on(LaneEvent::kAnswer);
    dirty_ = true;
    if (is_given_up(entry->state)) {  // meanwhile
      send_(wire::ChannelAnswer{offer.transport, "given up meanwhile", {}});
    } else if (const Status taken = take_up(*entry, offer); !taken) {
      give_up(*entry, taken.error());
    }
  }
  sweep();
  return {};
}

Status LaneSet::take_up(Entry& entry, const wire::ChannelOffer& offer) {
  make_channels(entry);
  auto addresses = entry.channels->answer(offer.addresses);
  if (!addresses) {
    send_(wire::ChannelAnswer{offer.transport, addresses.error().message, {}});
    return tl::unexpected(addresses.error());
  }
  const std::vector<Bytes> theirs(offer.addresses.begin(),
                                  offer.addresses.begin() + static_cast<std::ptrdiff_t>(addresses->size()));
  send_(wire::ChannelAnswer{offer.transport, "", std::move(*addresses)});
  return entry.channels->connect(theirs);
}

Status LaneSet::on(const wire::ChannelAnswer& answer) {
  {
    MutexLock lock(mutex_);
    if (closed_) return {};
    Entry* entry = find(answer.transport);
    // One answer to one offer: a second one would connect channels anew that workers have by now.
    if (role_ != Role::kConnector || entry == nullptr || !may_come(*entry, LaneState::kOffered)) {
      return fail(ErrorCode::kProtocol, "an answer about {} channels that was not due", answer.transport);
    }
    entry->on(LaneEvent::kAnswer);
    dirty_ = true;
    if (is_given_up(entry->state)) return {};  // meanwhile
    if (const Status taken = take_answer(*entry, answer); !taken) give_up(*entry, taken.error());
  }
  sweep();
  return {};
}

Status LaneSet::take_answer(Entry& entry, const wire::ChannelAnswer& answer) {
  if (!answer.reason.empty()) {
    return fail(ErrorCode::kUnavailable, "the peer could not open its channels: {}", answer.reason);
  }
  if (answer.addresses.empty() || answer.addresses.size() > entry.channels->size()) {
    return fail(ErrorCode::kProtocol, "the peer answered with a wrong number of channels");
  }
  return entry.channels->connect(answer.addresses);
}

Status LaneSet::on(const wire::ChannelsReady& ready) {
  {
    MutexLock lock(mutex_);
    if (closed_) return {};
    Entry* entry = find(ready.transport);
    const bool success = ready.reason.empty();
    if (entry == nullptr || entry->state == LaneState::kUnshared || !is_due(*entry, success)) {
      return fail(ErrorCode::kProtocol, "{} channels ready that were not due", ready.transport);
    }
    entry->peer_said = success ? PeerSaid::kReady : PeerSaid::kGaveUp;
    if (!success) {
      const Error why{ErrorCode::kPeerGone, "the peer gave it up: " + ready.reason.text()};
      const bool news = !is_given_up(entry->state);
      if (news && entry->channels) entry->channels->leave(ChannelPool::Clock::now());
      if (news) give_up(*entry, why);
      router_->heard(index_of(*entry), why.message);
    }
    if (success && entry->state == LaneState::kServing) open_route(*entry);
    dirty_ = true;
  }
  sweep();
  return {};
}

/// Once that they are up, and once that they never are or will not be any more.
bool LaneSet::is_due(const Entry& entry, bool success) {
  switch (entry.peer_said) {
    case PeerSaid::kNothing:
    case PeerSaid::kLate: return !success || is_answered(entry.state);
    case PeerSaid::kReady: return !success;
    case PeerSaid::kGaveUp: break;
  }
  return false;
}

Status LaneSet::on(wire::ChannelControl control) {
  MutexLock lock(mutex_);
  if (closed_) return {};
  Entry* entry = find(control.transport);
  if (entry == nullptr || !is_answered(entry->state)) {
    return fail(ErrorCode::kProtocol, "a message for {} channel {} before it was connected",
                control.transport, control.channel);
  }
  if (!entry->channels) return {};  // given up meanwhile
  return entry->channels->control(std::move(control));
}

template <class Message>
Status LaneSet::take_reopening(const Message& message) {
  {
    MutexLock lock(mutex_);
    if (closed_) return {};
    Entry* entry = find(message.transport);
    if (entry == nullptr || !is_answered(entry->state) || !entry->settled()) {
      return fail(ErrorCode::kProtocol, "{}: {} before both sides were ready", message.transport,
                  wire::name(wire::Message(message)));
    }
    if (!entry->channels || entry->channels->ended()) return {};  // given up meanwhile
    if (Status taken = entry->channels->on(message); !taken) return taken;
    reconcile(*entry);
  }
  sweep();
  return {};
}

template Status LaneSet::take_reopening(const wire::ChannelReopen& message);
template Status LaneSet::take_reopening(const wire::ChannelReopened& message);
template Status LaneSet::take_reopening(const wire::ChannelsRest& message);
template Status LaneSet::take_reopening(const wire::ChannelsWanted& message);

void LaneSet::open_idle() {
  if (any_idle_.exchange(false)) {
    context_->reactor->post([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->tell_all(&ChannelPool::wake);
    });
  }
}

void LaneSet::tell_all(void (ChannelPool::*call)()) {
  {
    MutexLock lock(mutex_);
    for (Entry& entry : entries_) {
      if (!entry.channels) continue;
      (entry.channels.get()->*call)();
      reconcile(entry);
    }
  }
  sweep();
}

// A channel of `transport` came up or went down.
void LaneSet::channel_changed(std::size_t transport, std::uint32_t channel, const Status& status) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    Entry& entry = entries_[transport];
    if (!entry.channels) return;
    entry.channels->changed(channel, status);
    reconcile(entry);
    if (!status && entry.peer_said == PeerSaid::kGaveUp) router_->close(transport, status.error());
    dirty_ = true;
  }
  sweep();
}

void LaneSet::reconcile(Entry& entry) {
  const ChannelPool::News news = entry.channels->reconcile(ChannelPool::Clock::now());
  if (news == ChannelPool::News::kLost) return give_up(entry, entry.channels->why());
  if (entry.channels->is_idle()) any_idle_ = dirty_ = true;
  if (news != ChannelPool::News::kServing || entry.state != LaneState::kConnecting) return;
  entry.on(LaneEvent::kUp);
  send_(wire::ChannelsReady{name_of(entry), ""});
  if (entry.settled()) open_route(entry);
  dirty_ = true;
}

void LaneSet::tick() {
  timer_.reset();
  {
    MutexLock lock(mutex_);
    for (Entry& entry : entries_) {
      if (entry.channels) reconcile(entry);
    }
  }
  sweep();
}

// On the reactor's thread.
void LaneSet::set_timer() {
  std::optional<ChannelPool::Clock::time_point> next;
  {
    MutexLock lock(mutex_);
    for (const Entry& entry : entries_) {
      const auto due = entry.channels ? entry.channels->next_deadline() : std::nullopt;
      if (due && (!next || *due < *next)) next = due;
    }
  }
  if (timer_ && next && timer_at_ == *next) return;
  if (timer_) context_->reactor->cancel(*std::exchange(timer_, std::nullopt));
  if (!next) return;
  timer_at_ = *next;
  timer_ = context_->reactor->after(*next - ChannelPool::Clock::now(), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->tick();
  });
}

void LaneSet::open_route(const Entry& entry) {
  entry.channels->peer_serves();
  router_->open(index_of(entry), entry.channels->lane());
}

void LaneSet::give_up(Entry& entry, const Error& why) {
  const std::size_t index = index_of(entry);
  const std::string name = name_of(entry);
  if (router_->usable(index)) log(LogLevel::kInfo, "{} is lost: {}", name, why.message);
  // The peer would else wait for it until this side is hung.
  const bool tells = !is_given_up(entry.state) && entry.peer_said != PeerSaid::kGaveUp;
  if (tells || !is_decided(entry.state)) send_(wire::ChannelsReady{name, why.message});
  entry.on(LaneEvent::kGiveUp);
  if (entry.channels) {
    if (!entry.channels->ended()) entry.channels->clear(trash_);
    given_up_.emplace_back(entry.channels->lane(), why);
  }
  router_->close(index, why);
  dirty_ = true;
}

void LaneSet::expire(const Error& error) {
  {
    MutexLock lock(mutex_);
    for (Entry& entry : entries_) {
      if (entry.channels) {
        entry.channels->hurry();
        reconcile(entry);
      }
      if (entry.state == LaneState::kUnshared || entry.settled()) continue;
      give_up(entry, error);
      if (entry.peer_said == PeerSaid::kNothing) entry.peer_said = PeerSaid::kLate;
    }
  }
  sweep();
}

void LaneSet::sweep() {
  std::vector<std::shared_ptr<ChannelRunner>> trash;
  std::vector<std::pair<std::shared_ptr<Lane>, Error>> given_up;
  bool changed = false;
  {
    MutexLock lock(mutex_);
    trash.swap(trash_);
    given_up.swap(given_up_);
    for (Entry& entry : entries_) {
      if (entry.channels) std::ranges::move(entry.channels->take_trash(), std::back_inserter(trash));
    }
    changed = std::exchange(dirty_, false) && !closed_;
  }
  const Error error{ErrorCode::kPeerGone, "the channel was given up"};
  for (const auto& runner : trash) runner->stop(error);
  PostUnlockActions actions;
  for (const auto& [lane, why] : given_up) lane->give_up(why, actions);
  actions.run();
  set_timer();
  if (changed) changed_();
}

// Of several who close at once each stops all channels: none may go on before they have ended.
void LaneSet::close(const Error& error) {
  std::vector<std::unique_ptr<ChannelPool>> sets;
  std::vector<std::shared_ptr<ChannelRunner>> ending;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    for (Entry& entry : entries_) {
      if (entry.channels) {
        entry.channels->clear(trash_);
        std::ranges::move(entry.channels->take_trash(), std::back_inserter(trash_));
        sets.push_back(std::move(entry.channels));
      }
      entry = Entry();
    }
    ending.swap(trash_);
    for (const auto& runner : ending_) {
      if (auto one = runner.lock()) ending.push_back(std::move(one));
    }
    ending_.assign(ending.begin(), ending.end());
    router_->close_all(error.message);
  }
  for (const auto& set : sets) {
    PostUnlockActions actions;
    set->lane()->close(error, actions);
    actions.run();
  }
  for (const auto& runner : ending) runner->stop(error);
}

bool LaneSet::met() const {
  MutexLock lock(mutex_);
  return started_ && std::all_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
           return entry.state != LaneState::kExpected && entry.state != LaneState::kOffered;
         });
}

bool LaneSet::settled() const {
  MutexLock lock(mutex_);
  return started_ && std::all_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
           return entry.state == LaneState::kUnshared || entry.settled();
         });
}

void LaneSet::add_to(Stats& stats) const {
  MutexLock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (!entry.channels) continue;
    const Lane& lane = *entry.channels->lane();
    stats.batches_retried += lane.retried();
    stats.channels_lost += lane.history().losses();
    stats.channels_returned += lane.history().returns();
    if (!entry.channels->ended()) stats.channels_wanted += lane.expected();
    stats.pieces_queued += lane.queued();
    const RunnerList runners = lane.runners();
    stats.channels += runners.size();
    stats.channels_encrypted += runners.encrypted();
  }
}

std::vector<std::shared_ptr<ChannelRunner>> LaneSet::runners() const {
  std::vector<std::shared_ptr<ChannelRunner>> runners;
  MutexLock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.channels) entry.channels->for_each([&](const auto& runner) { runners.push_back(runner); });
  }
  return runners;
}

void LaneSet::abandon(const std::shared_ptr<TransferState>& state) const {
  for (const auto& runner : runners()) runner->abandon(state);
}

bool LaneSet::heard_within(std::chrono::milliseconds time) const {
  const auto all = runners();
  return std::any_of(all.begin(), all.end(),
                     [time](const auto& runner) { return runner->heard_within(time); });
}

void LaneSet::moved(const PeerPath& path) {
  MutexLock lock(mutex_);
  peer_.path = path;
  for (Entry& entry : entries_) {
    if (entry.channels) entry.channels->moved(path);
  }
}

LaneSet::Entry* LaneSet::find(const std::string& transport) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (context_->transports()[i].transport->name() == transport) return &entries_[i];
  }
  return nullptr;
}

std::size_t LaneSet::index_of(const Entry& entry) const {
  return static_cast<std::size_t>(&entry - entries_.data());
}

std::string LaneSet::name_of(const Entry& entry) const {
  return std::string(context_->transports()[index_of(entry)].transport->name());
}

}  // namespace p2p::engine
