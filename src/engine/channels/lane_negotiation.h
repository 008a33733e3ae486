// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/channels/channel_pool.h"
#include "engine/channels/context.h"
#include "engine/channels/lane_state.h"
#include "engine/channels/router.h"
#include "p2p/stats.h"

namespace p2p::engine {

/// What came of lanes under their owner's mutex, for the owner to see to once it is free.
struct LaneAftermath {
  ChannelPool::Runners ending;                                    ///< to be stopped
  std::vector<std::pair<std::shared_ptr<Lane>, Error>> given_up;  ///< what waits there goes over others
  bool changed = false;                                           ///< a lane got further
};

/// One transport of a connection: what this side and the peer said of it, from the offer of channels to the
/// end, and the channels that came of it. Opens and closes its route. Not thread-safe: LaneSet guards it, and
/// asks whether a message is due before it has it taken.
class LaneNegotiation {
 public:
  /// `transport` is its index. What is given lives longer.
  LaneNegotiation(std::size_t transport, std::string name, const SendMessage& send, Router& router,
                  LaneAftermath& after)
      : transport_(transport), name_(std::move(name)), send_(send), router_(router), after_(after) {}

  std::size_t transport() const { return transport_; }
  const std::string& name() const { return name_; }

  /// Null before the offer, and where there was none.
  ChannelPool* channels() const { return channels_.get(); }

  /// Both sides can use it: an offer is to come.
  void share();

  bool is_shared() const { return state_ != LaneState::kUnshared; }
  bool may_offer() const { return state_ == LaneState::kExpected; }
  bool may_serve() const { return is_shared() && !is_given_up(state_); }
  bool is_answered() const { return engine::is_answered(state_); }

  /// Whether its channels can reach the peer is not known yet.
  bool is_open() const { return state_ == LaneState::kExpected || state_ == LaneState::kOffered; }

  /// Up here or given up, and the peer has said the same, or is not waited for.
  bool settled() const { return is_decided(state_) && peer_said_ != PeerSaid::kNothing; }
  bool peer_gave_up() const { return peer_said_ == PeerSaid::kGaveUp; }

  /// The message has not come yet, and may.
  bool awaits_offer() const { return may_come(LaneState::kExpected); }
  bool awaits_answer() const { return may_come(LaneState::kOffered); }
  bool awaits(const wire::ChannelsReady& ready) const;

  /// As connector: opens channels and offers them.
  void offer(ChannelPool::Setup setup);

  void take(const wire::ChannelOffer& offer, ChannelPool::Setup setup);

  /// False: it was given up meanwhile.
  bool take(const wire::ChannelAnswer& answer);
  void take(const wire::ChannelsReady& ready);

  /// Does what is due. It has channels.
  void reconcile();

  /// Given up here; the peer is told, unless it gave it up before.
  void give_up(const Error& why);

  /// Given up unless it is settled; the peer is not waited for.
  void expire(const Error& error);

  /// Adds what its channels have counted.
  void add_to(Stats& stats) const;

  /// The connection is over. Its channels, if it has any.
  std::unique_ptr<ChannelPool> end();

 private:
  /// By its ChannelsReady. kLate: nothing, and it is waited for no longer.
  enum class PeerSaid : std::uint8_t { kNothing, kLate, kReady, kGaveUp };

  void on(LaneEvent event) { state_ = next_state(state_, event); }
  bool may_come(LaneState before) const { return state_ == before || state_ == LaneState::kGivenUpEarly; }
  Status answer(const wire::ChannelOffer& offer, ChannelPool::Setup setup);
  Status connect(const wire::ChannelAnswer& answer);
  void open_route();

  const std::size_t transport_;
  const std::string name_;
  const SendMessage& send_;
  Router& router_;
  LaneAftermath& after_;

  LaneState state_ = LaneState::kUnshared;
  PeerSaid peer_said_ = PeerSaid::kNothing;
  std::unique_ptr<ChannelPool> channels_;
};

}  // namespace p2p::engine
