// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/channels/channel_maker.h"
#include "engine/channels/channel_place.h"
#include "engine/channels/channel_states.h"
#include "engine/channels/path_meter.h"

namespace p2p::engine {

/// The channels of one transport of one connection. They are offered and answered once; after that the side
/// that dialled the session opens them, again after a loss, too. `ChannelStates` decides when (the table is
/// in docs/channels.md), `ChannelMaker` makes them; this class connects and stops them, and speaks with the
/// peer.
///
/// Not thread-safe: LaneSet guards it, calls it on the reactor's thread, and calls `reconcile` after any
/// other call.
class ChannelPool {
 public:
  using Clock = ChannelStates::Clock;
  using Setup = ChannelMaker::Setup;
  using Runners = ChannelPlace::Runners;

  /// Channels that are to be stopped go to `ending`, which lives longer.
  ChannelPool(Setup setup, Runners& ending);

  const std::shared_ptr<Lane>& lane() const { return maker_.lane(); }
  std::size_t size() const { return places_.size(); }
  bool is_idle() const { return states_.phase() >= PoolPhase::kIdle && !ended(); }

  /// The first channels are up, and others up, failed or late; or that was so, and it has not ended.
  bool serves() const { return states_.phase() >= PoolPhase::kServing && !ended(); }

  /// It has no channels, nor will have any, but those that end by themselves.
  bool ended() const { return states_.ended(); }

  /// None is left by itself, for this reason.
  bool lost() const { return states_.ending() != ChannelStates::Ending::kNone; }
  Error why() const;

  /// The connector makes as many channels as the rails have: their addresses, empty for surplus ones.
  Result<std::vector<Bytes>> open();

  /// The acceptor makes as many as both have.
  Result<std::vector<Bytes>> answer(const std::vector<Bytes>& offered);

  /// Leaves the first `addresses.size()` channels and connects them to those.
  Status connect(const std::vector<Bytes>& addresses);

  /// A channel is up or has failed.
  void changed(std::uint32_t channel, const Status& status);

  /// The other side dialled anew for a channel that failed, or answers that.
  Status on(const wire::ChannelReopen& offer);
  Status on(const wire::ChannelReopened& answer);

  /// The connector closes its idle channels, or the acceptor asks for it; the acceptor wants them again.
  Status on(const wire::ChannelsRest& idle);
  Status on(const wire::ChannelsWanted& wanted);

  /// kProtocol for one that never was.
  Status control(wire::ChannelControl message);

  void moved(const PeerPath& path) { maker_.moved(path); }

  /// Both sides have said that their channels serve.
  void peer_serves() { states_.on(PoolEvent::kPeerServes, Clock::now()); }

  /// Opens channels that are idle, or asks the peer to.
  void wake();

  /// The lane has much to do.
  void watch();

  /// It waits for none that is not up yet.
  void hurry() { states_.on(PoolEvent::kHurry, Clock::now()); }

  /// Does what is due.
  void reconcile(Clock::time_point now);

  /// When something is due next; nothing: after the next call.
  ChannelStates::Time next_deadline() const { return states_.next_deadline(); }

  /// The peer has given it up, and shuts its channels. Those here end by themselves once they hear of that,
  /// so that what is under way may go over another transport; those that do not hear are stopped in the end.
  void leave(Clock::time_point now);

  /// No channel is left in it, nor will be.
  void clear();

  void add_to(Runners& runners) const;

 private:
  using Kind = ChannelStates::Kind;

  Capabilities can() const { return maker_.transport().capabilities(); }
  std::string name() const { return std::string(maker_.transport().name()); }
  bool connects() const { return maker_.role() == Role::kConnector; }
  Result<ChannelPlace*> find(std::uint32_t channel);
  Result<std::vector<Bytes>> open(const std::vector<Kind>& kinds);
  Result<Bytes> make(ChannelPlace& place);
  void note_loss(ChannelPlace& place, std::string_view why);
  void lose(ChannelPlace& place, const Error& why);
  void perform(const ChannelStates::Action& action);
  void reopen(ChannelPlace& place);
  void abort(ChannelPlace& place);
  void close_idle();
  void became_idle();
  ChannelStates::Time unused_since() const;
  ChannelStates::Traffic traffic(Clock::time_point now);

  ChannelMaker maker_;
  Lane& lane_;
  const SendMessage send_;
  ChannelStates states_;
  std::vector<ChannelPlace> places_;
  Runners& ending_;
  PathMeter paths_;
  Error why_;  // the last one was lost
};

}  // namespace p2p::engine
