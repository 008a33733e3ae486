// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/channels/channel_pool.h"
#include "engine/channels/context.h"
#include "engine/channels/lane_negotiation.h"
#include "engine/channels/router.h"
#include "engine/memory/fence.h"
#include "engine/schedule/lane.h"
#include "engine/session/session.h"
#include "p2p/stats.h"

namespace p2p::engine {

/// The lanes of one connection, one for each transport that both sides can use, from the offer of channels to
/// their end. Messages come on the reactor's thread.
class LaneSet : public std::enable_shared_from_this<LaneSet> {
 public:
  /// `changed` is called, on the reactor's thread, when a lane got further or was given up.
  LaneSet(std::shared_ptr<Context> context, SendMessage send, std::function<void()> changed,
          MakeMessagePort make_message_port);

  /// Finds what both sides can use.
  void start(Role role, const SessionPeer& peer);

  /// As connector, after `start`: opens and offers the channels of one transport. False: there is none left.
  bool offer_next();

  Status on(const wire::ChannelOffer& offer);
  Status on(const wire::ChannelAnswer& answer);
  Status on(const wire::ChannelsReady& ready);
  Status on(wire::ChannelControl control);

  /// A ChannelReopen, ChannelReopened, ChannelsRest or ChannelsWanted.
  template <class Message>
  Status take_reopening(const Message& message);

  /// Short messages are about to be sent: has idle channels opened for those that follow. Any thread.
  void open_idle();

  /// Some channels may be closed because nothing used them. Any thread; needs no lock.
  bool may_be_idle() const { return any_idle_; }

  /// Gives up what is not up yet.
  void expire(const Error& error);

  /// Of every lane it is known whether its channels can reach the peer, or it is given up.
  bool met() const;

  /// Every lane is up on both sides or given up.
  bool settled() const;

  /// The choice among those that are up.
  const std::shared_ptr<Router>& router() const { return router_; }

  /// Adds what the lanes have counted.
  void add_to(Stats& stats) const;

  /// Asks all channels to leave a transfer's local memory alone.
  void abandon(const std::shared_ptr<TransferState>& state) const;

  /// The peer's machine was heard of over one of the channels; false also where none can tell.
  bool heard_within(std::chrono::milliseconds time) const;

  /// The session goes on over this path.
  void moved(const PeerPath& path);

  /// Ends all channels. What is under way fails with `error`. Any thread, also several at once: to each that
  /// returns all have ended.
  void close(const Error& error);

  /// What the peer must pass before memory that it could reach is free, once the channels have ended.
  const std::shared_ptr<Fence>& fence() const { return fence_; }

 private:
  ChannelPool::Runners runners() const;
  LaneNegotiation* find(const std::string& transport) P2P_REQUIRES(mutex_);
  ChannelPool::Setup setup_of(const LaneNegotiation& lane) P2P_REQUIRES(mutex_);
  void reconcile(LaneNegotiation& lane) P2P_REQUIRES(mutex_);
  void tell_all(void (ChannelPool::*call)());
  void channel_changed(std::size_t transport, std::uint32_t channel, const Status& status);
  void tick();
  void set_timer();

  /// Ends what was given up and reports changes, with the mutex free.
  void sweep();

  const std::shared_ptr<Context> context_;
  const SendMessage send_;
  const std::function<void()> changed_;
  const std::shared_ptr<Router> router_;
  const std::shared_ptr<Fence> fence_;
  const MakeMessagePort make_message_port_;

  mutable Mutex mutex_;
  Role role_ P2P_GUARDED_BY(mutex_) = Role::kConnector;
  SessionPeer peer_ P2P_GUARDED_BY(mutex_);
  LaneAftermath after_ P2P_GUARDED_BY(mutex_);                               // until `sweep`
  std::vector<LaneNegotiation> lanes_ P2P_GUARDED_BY(mutex_);                // one for each transport
  std::vector<std::weak_ptr<ChannelRunner>> ending_ P2P_GUARDED_BY(mutex_);  // with the connection
  bool started_ P2P_GUARDED_BY(mutex_) = false;
  bool closed_ P2P_GUARDED_BY(mutex_) = false;

  std::atomic<bool> any_idle_{false};  // some channels may

  // Reactor's thread only.
  std::optional<Reactor::TimerId> timer_;
  ChannelPool::Clock::time_point timer_at_;
};

}  // namespace p2p::engine
