// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/lane_set.h"

#include <algorithm>
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
      make_message_port_(std::move(make_message_port)) {
  for (const TransportSlot& slot : context_->transports()) {
    lanes_.emplace_back(lanes_.size(), std::string(slot.transport->name()), send_, *router_, after_);
  }
}

void LaneSet::start(Role role, const SessionPeer& peer) {
  {
    MutexLock lock(mutex_);
    role_ = role;
    peer_ = peer;
    started_ = true;
    for (LaneNegotiation& lane : lanes_) {
      const std::size_t i = lane.transport();
      if (const auto& unusable = context_->transports()[i].unusable) {
        router_->close(i, *unusable);
        continue;
      }
      for (const wire::TransportStatus& theirs : peer.introduction.transports) {
        if (theirs.name != lane.name()) continue;
        if (theirs.reason.empty()) {
          lane.share();
        } else {
          router_->close(i, "the peer cannot use it: " + theirs.reason.text());
        }
      }
    }
    after_.changed = true;
  }
  sweep();
}

bool LaneSet::offer_next() {
  {
    MutexLock lock(mutex_);
    const auto next = std::ranges::find_if(lanes_, &LaneNegotiation::may_offer);
    if (closed_ || next == lanes_.end()) return false;
    next->offer(setup_of(*next));
  }
  sweep();
  return true;
}

ChannelPool::Setup LaneSet::setup_of(const LaneNegotiation& lane) {
  std::vector<std::string> of_both;
  for (const LaneNegotiation& other : lanes_) {
    if (other.may_serve()) of_both.push_back(other.name());
  }
  const std::size_t index = lane.transport();
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
  ChannelPool::Setup setup{context_, index,  role_,   peer_,  std::move(of_both), send_, make_message_port_,
                           fence_,   report, nullptr, nullptr};
  setup.want = on_reactor(&ChannelPool::wake);
  setup.bulk = on_reactor(&ChannelPool::watch);
  return setup;
}

Status LaneSet::on(const wire::ChannelOffer& offer) {
  {
    MutexLock lock(mutex_);
    if (closed_) return {};
    LaneNegotiation* const lane = find(offer.transport);
    if (role_ != Role::kAcceptor || lane == nullptr || !lane->awaits_offer() || offer.addresses.empty() ||
        offer.addresses.size() > kMaxChannels) {
      return fail(ErrorCode::kProtocol, "an offer of {} {} channels that was not due", offer.addresses.size(),
                  offer.transport);
    }
    lane->take(offer, setup_of(*lane));
  }
  sweep();
  return {};
}

Status LaneSet::on(const wire::ChannelAnswer& answer) {
  {
    MutexLock lock(mutex_);
    if (closed_) return {};
    LaneNegotiation* const lane = find(answer.transport);
    // One answer to one offer: a second one would connect channels anew that workers have by now.
    if (role_ != Role::kConnector || lane == nullptr || !lane->awaits_answer()) {
      return fail(ErrorCode::kProtocol, "an answer about {} channels that was not due", answer.transport);
    }
    if (!lane->take(answer)) return {};
  }
  sweep();
  return {};
}

Status LaneSet::on(const wire::ChannelsReady& ready) {
  {
    MutexLock lock(mutex_);
    if (closed_) return {};
    LaneNegotiation* const lane = find(ready.transport);
    if (lane == nullptr || !lane->awaits(ready)) {
      return fail(ErrorCode::kProtocol, "{} channels ready that were not due", ready.transport);
    }
    lane->take(ready);
  }
  sweep();
  return {};
}

Status LaneSet::on(wire::ChannelControl control) {
  MutexLock lock(mutex_);
  if (closed_) return {};
  LaneNegotiation* const lane = find(control.transport);
  if (lane == nullptr || !lane->is_answered()) {
    return fail(ErrorCode::kProtocol, "a message for {} channel {} before it was connected",
                control.transport, control.channel);
  }
  if (lane->channels() == nullptr) return {};  // given up meanwhile
  return lane->channels()->control(std::move(control));
}

template <class Message>
Status LaneSet::take_reopening(const Message& message) {
  {
    MutexLock lock(mutex_);
    if (closed_) return {};
    LaneNegotiation* const lane = find(message.transport);
    if (lane == nullptr || !lane->is_answered() || !lane->settled()) {
      return fail(ErrorCode::kProtocol, "{}: {} before both sides were ready", message.transport,
                  wire::name(wire::Message(message)));
    }
    ChannelPool* const channels = lane->channels();
    if (channels == nullptr || channels->ended()) return {};  // given up meanwhile
    if (Status taken = channels->on(message); !taken) return taken;
    reconcile(*lane);
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
    for (LaneNegotiation& lane : lanes_) {
      if (lane.channels() == nullptr) continue;
      (lane.channels()->*call)();
      reconcile(lane);
    }
  }
  sweep();
}

// A channel of `transport` came up or went down.
void LaneSet::channel_changed(std::size_t transport, std::uint32_t channel, const Status& status) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    LaneNegotiation& lane = lanes_[transport];
    if (lane.channels() == nullptr) return;
    lane.channels()->changed(channel, status);
    reconcile(lane);
    if (!status && lane.peer_gave_up()) router_->close(transport, status.error());
    after_.changed = true;
  }
  sweep();
}

void LaneSet::reconcile(LaneNegotiation& lane) {
  lane.reconcile();
  if (lane.channels()->is_idle()) any_idle_ = after_.changed = true;
}

void LaneSet::tick() {
  timer_.reset();
  {
    MutexLock lock(mutex_);
    for (LaneNegotiation& lane : lanes_) {
      if (lane.channels() != nullptr) reconcile(lane);
    }
  }
  sweep();
}

// On the reactor's thread.
void LaneSet::set_timer() {
  std::optional<ChannelPool::Clock::time_point> next;
  {
    MutexLock lock(mutex_);
    for (const LaneNegotiation& lane : lanes_) {
      const auto due = lane.channels() != nullptr ? lane.channels()->next_deadline() : std::nullopt;
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

void LaneSet::expire(const Error& error) {
  {
    MutexLock lock(mutex_);
    for (LaneNegotiation& lane : lanes_) {
      if (lane.channels() != nullptr) {
        lane.channels()->hurry();
        reconcile(lane);
      }
      lane.expire(error);
    }
  }
  sweep();
}

void LaneSet::sweep() {
  LaneAftermath after;
  {
    MutexLock lock(mutex_);
    std::swap(after, after_);
    if (closed_) after.changed = false;
  }
  const Error error{ErrorCode::kPeerGone, "the channel was given up"};
  for (const auto& runner : after.ending) runner->stop(error);
  PostUnlockActions actions;
  for (const auto& [lane, why] : after.given_up) lane->give_up(why, actions);
  actions.run();
  set_timer();
  if (after.changed) changed_();
}

// Of several who close at once each stops all channels: none may go on before they have ended.
void LaneSet::close(const Error& error) {
  std::vector<std::unique_ptr<ChannelPool>> sets;
  ChannelPool::Runners ending;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    for (LaneNegotiation& lane : lanes_) {
      if (auto channels = lane.end()) sets.push_back(std::move(channels));
    }
    ending.swap(after_.ending);
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
  return started_ && std::ranges::none_of(lanes_, &LaneNegotiation::is_open);
}

bool LaneSet::settled() const {
  MutexLock lock(mutex_);
  return started_ &&
         std::ranges::all_of(lanes_, [](const auto& lane) { return !lane.is_shared() || lane.settled(); });
}

void LaneSet::add_to(Stats& stats) const {
  MutexLock lock(mutex_);
  for (const LaneNegotiation& lane : lanes_) lane.add_to(stats);
}

ChannelPool::Runners LaneSet::runners() const {
  ChannelPool::Runners runners;
  MutexLock lock(mutex_);
  for (const LaneNegotiation& lane : lanes_) {
    if (lane.channels() != nullptr) lane.channels()->add_to(runners);
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
  for (const LaneNegotiation& lane : lanes_) {
    if (lane.channels() != nullptr) lane.channels()->moved(path);
  }
}

LaneNegotiation* LaneSet::find(const std::string& transport) {
  const auto found = std::ranges::find(lanes_, transport, &LaneNegotiation::name);
  return found == lanes_.end() ? nullptr : &*found;
}

}  // namespace p2p::engine
