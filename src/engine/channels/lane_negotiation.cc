// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/lane_negotiation.h"

#include "base/error.h"
#include "base/log.h"

namespace p2p::engine {

void LaneNegotiation::share() {
  on(LaneEvent::kShare);
  router_.await(transport_);
}

void LaneNegotiation::offer(ChannelPool::Setup setup) {
  channels_ = std::make_unique<ChannelPool>(std::move(setup), after_.ending);
  auto addresses = channels_->open();
  if (addresses) {
    on(LaneEvent::kOffer);
    send_(wire::ChannelOffer{name_, std::move(*addresses)});
  } else {
    give_up(addresses.error());
  }
  after_.changed = true;
}

void LaneNegotiation::take(const wire::ChannelOffer& offer, ChannelPool::Setup setup) {
  on(LaneEvent::kAnswer);
  after_.changed = true;
  if (is_given_up(state_)) {  // meanwhile
    send_(wire::ChannelAnswer{name_, "given up meanwhile", {}});
  } else if (const Status taken = answer(offer, std::move(setup)); !taken) {
    give_up(taken.error());
  }
}

Status LaneNegotiation::answer(const wire::ChannelOffer& offer, ChannelPool::Setup setup) {
  channels_ = std::make_unique<ChannelPool>(std::move(setup), after_.ending);
  auto addresses = channels_->answer(offer.addresses);
  if (!addresses) {
    send_(wire::ChannelAnswer{name_, addresses.error().message, {}});
    return tl::unexpected(addresses.error());
  }
  const std::vector<Bytes> theirs(offer.addresses.begin(),
                                  offer.addresses.begin() + static_cast<std::ptrdiff_t>(addresses->size()));
  send_(wire::ChannelAnswer{name_, "", std::move(*addresses)});
  return channels_->connect(theirs);
}

bool LaneNegotiation::take(const wire::ChannelAnswer& answer) {
  on(LaneEvent::kAnswer);
  after_.changed = true;
  if (is_given_up(state_)) return false;
  if (const Status taken = connect(answer); !taken) give_up(taken.error());
  return true;
}

Status LaneNegotiation::connect(const wire::ChannelAnswer& answer) {
  if (!answer.reason.empty()) {
    return fail(ErrorCode::kUnavailable, "the peer could not open its channels: {}", answer.reason);
  }
  if (answer.addresses.empty() || answer.addresses.size() > channels_->size()) {
    return fail(ErrorCode::kProtocol, "the peer answered with a wrong number of channels");
  }
  return channels_->connect(answer.addresses);
}

/// Once that they are up, and once that they never are or will not be any more.
bool LaneNegotiation::awaits(const wire::ChannelsReady& ready) const {
  if (!is_shared()) return false;
  const bool success = ready.reason.empty();
  switch (peer_said_) {
    case PeerSaid::kNothing:
    case PeerSaid::kLate: return !success || is_answered();
    case PeerSaid::kReady: return !success;
    case PeerSaid::kGaveUp: break;
  }
  return false;
}

void LaneNegotiation::take(const wire::ChannelsReady& ready) {
  const bool success = ready.reason.empty();
  peer_said_ = success ? PeerSaid::kReady : PeerSaid::kGaveUp;
  if (!success) {
    const Error why{ErrorCode::kPeerGone, "the peer gave it up: " + ready.reason.text()};
    const bool news = !is_given_up(state_);
    if (news && channels_) channels_->leave(ChannelPool::Clock::now());
    if (news) give_up(why);
    router_.heard(transport_, why.message);
  }
  if (success && state_ == LaneState::kServing) open_route();
  after_.changed = true;
}

void LaneNegotiation::reconcile() {
  channels_->reconcile(ChannelPool::Clock::now());
  if (channels_->lost() && !is_given_up(state_)) return give_up(channels_->why());
  if (!channels_->serves() || state_ != LaneState::kConnecting) return;
  on(LaneEvent::kUp);
  send_(wire::ChannelsReady{name_, ""});
  if (settled()) open_route();
  after_.changed = true;
}

void LaneNegotiation::open_route() {
  channels_->peer_serves();
  router_.open(transport_, channels_->lane());
}

void LaneNegotiation::give_up(const Error& why) {
  if (router_.usable(transport_)) log(LogLevel::kInfo, "{} is lost: {}", name_, why.message);
  // The peer would else wait for it until this side is hung.
  const bool tells = !is_given_up(state_) && !peer_gave_up();
  if (tells || !is_decided(state_)) send_(wire::ChannelsReady{name_, why.message});
  on(LaneEvent::kGiveUp);
  if (channels_) {
    if (!channels_->ended()) channels_->clear();
    after_.given_up.emplace_back(channels_->lane(), why);
  }
  router_.close(transport_, why);
  after_.changed = true;
}

void LaneNegotiation::expire(const Error& error) {
  if (!is_shared() || settled()) return;
  give_up(error);
  if (peer_said_ == PeerSaid::kNothing) peer_said_ = PeerSaid::kLate;
}

void LaneNegotiation::add_to(Stats& stats) const {
  if (!channels_) return;
  const Lane& lane = *channels_->lane();
  stats.batches_retried += lane.retried();
  stats.channels_lost += lane.history().losses();
  stats.channels_returned += lane.history().returns();
  if (!channels_->ended()) stats.channels_wanted += lane.expected();
  stats.pieces_queued += lane.queued();
  const RunnerList runners = lane.runners();
  stats.channels += runners.size();
  stats.channels_encrypted += runners.encrypted();
}

std::unique_ptr<ChannelPool> LaneNegotiation::end() {
  if (channels_) channels_->clear();
  state_ = LaneState::kUnshared;
  peer_said_ = PeerSaid::kNothing;
  return std::move(channels_);
}

}  // namespace p2p::engine
