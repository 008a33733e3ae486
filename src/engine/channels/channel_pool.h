// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/channels/channel_states.h"
#include "engine/channels/context.h"
#include "engine/channels/path_meter.h"
#include "engine/memory/fence.h"
#include "engine/schedule/channel_runner.h"
#include "engine/schedule/lane.h"
#include "engine/session/session.h"

namespace p2p::engine {

/// More channels than this between two processes is a mistake or an attack.
inline constexpr std::size_t kMaxChannels = 64;

/// The channels of one transport of one connection. They are offered and answered once; after that the side
/// that dialled the session opens them, again after a loss, too. `ChannelStates` decides when (the table is
/// in docs/channels.md); this class makes, connects and stops them, and speaks with the peer.
///
/// Channels are numbered on the wire: the place, plus kMaxChannels for each one that was there before. Not
/// thread-safe: LaneSet guards it, calls it on the reactor's thread, and calls `reconcile` after any other
/// call.
class ChannelPool {
 public:
  using Clock = ChannelStates::Clock;

  struct Setup {
    std::shared_ptr<Context> context;
    std::size_t transport = 0;  ///< its index
    Role role = Role::kConnector;
    SessionPeer peer;
    std::vector<std::string> transports;  ///< that both sides have
    SendMessage send;
    MakeMessagePort make_message_port;
    std::shared_ptr<Fence> fence;

    /// Is told when a channel is up or has failed; on any thread.
    std::function<void(std::uint32_t channel, const Status&)> report;

    /// Are told when the lane has work for channels that are idle, and when it has much; on any thread.
    std::function<void()> want;
    std::function<void()> bulk;
  };

  /// What became of the pool. kServing: the first channels are up, and others up, failed or late; kLost: none
  /// is left, for `why()`.
  enum class News : std::uint8_t { kNone, kServing, kLost };

  explicit ChannelPool(Setup setup);

  const std::shared_ptr<Lane>& lane() const { return lane_; }
  std::size_t size() const { return places_.size(); }
  bool is_idle() const { return states_.phase() >= PoolPhase::kIdle && !ended(); }

  /// It has no channels, nor will have any, but those that end by themselves.
  bool ended() const { return states_.ended(); }

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

  /// The session has another path: unless the application named interfaces, channels that are opened from now
  /// on take that one.
  void moved(const PeerPath& path);

  /// Both sides have said that their channels serve.
  void peer_serves() { states_.on(PoolEvent::kPeerServes, Clock::now()); }

  /// Opens channels that are idle, or asks the peer to.
  void wake();

  /// The lane has much to do.
  void watch();

  /// It waits for none that is not up yet.
  void hurry() { states_.on(PoolEvent::kHurry, Clock::now()); }

  /// Does what is due.
  News reconcile(Clock::time_point now);

  /// When something is due next; nothing: after the next call.
  ChannelStates::Time next_deadline() const { return states_.next_deadline(); }

  const Error& why() const { return why_; }

  /// The peer has given it up, and shuts its channels. Those here end by themselves once they hear of that,
  /// so that what is under way may go over another transport; those that do not hear are stopped in the end.
  void leave(Clock::time_point now);

  /// No channel is left in it, nor will be: they go to `trash`.
  void clear(std::vector<std::shared_ptr<ChannelRunner>>& trash);

  /// Channels that were taken out since, to be stopped.
  std::vector<std::shared_ptr<ChannelRunner>> take_trash() { return std::exchange(trash_, {}); }

  void for_each(const std::function<void(const std::shared_ptr<ChannelRunner>&)>& visit) const;

 private:
  using Kind = ChannelStates::Kind;

  /// Where one channel is, one after the other.
  struct Place {
    Rail rail;
    std::shared_ptr<ChannelRunner> runner;                            ///< null: kAbsent, kBackoff, kShutdown
    std::uint32_t past = 0;                                           ///< channels that were here before
    std::map<std::uint32_t, std::shared_ptr<ChannelRunner>> retired;  ///< of those the ones not ended yet
    bool was_lost = false;                                            ///< and none has come up since
  };

  const Transport& transport() const { return *setup_.context->transports()[setup_.transport].transport; }
  std::string name() const { return std::string(transport().name()); }
  bool connects() const { return setup_.role == Role::kConnector; }
  std::size_t index_of(const Place& place) const { return static_cast<std::size_t>(&place - places_.data()); }
  std::uint32_t number(const Place& place) const {
    return static_cast<std::uint32_t>(place.past * kMaxChannels + index_of(place));
  }
  Connectivity state(const Place& place) const { return states_.state(index_of(place)); }
  Result<Place*> find(std::uint32_t channel);
  Result<std::shared_ptr<ChannelRunner>> open_runner(const Rail& rail, std::uint32_t number);
  void plan(std::size_t most);
  Result<std::vector<Bytes>> open_first();
  Status connect(Place& place, const Bytes& address);
  void discard(Place& place);
  void retire(Place& place);
  void end_retired(Place& place, std::uint32_t channel);
  void note_loss(Place& place, std::string_view why);
  void lose(Place& place, const Error& why);
  void perform(const ChannelStates::Action& action);
  void reopen(Place& place);
  void abort(Place& place);
  void close_idle();
  void became_idle();
  ChannelStates::Time unused_since() const;
  ChannelStates::Traffic traffic(Clock::time_point now);

  Setup setup_;
  const std::shared_ptr<Lane> lane_;
  std::function<void()> stalls_;  // null: of one rail
  ChannelStates states_;
  std::vector<Place> places_;
  std::vector<std::shared_ptr<ChannelRunner>> trash_;
  PathMeter paths_;
  PoolPhase told_ = PoolPhase::kNegotiating;  // by `reconcile`
  Error why_;
};

}  // namespace p2p::engine
