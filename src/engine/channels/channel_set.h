// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/channels/channel_entry.h"
#include "engine/channels/context.h"
#include "engine/memory/fence.h"
#include "engine/schedule/lane.h"
#include "engine/session/session.h"

namespace p2p::engine {

/// The channels of one transport of one connection, each in a place of its own. They are offered and answered
/// once, and serve as soon as one is up. One that fails while others serve is opened again in its place,
/// where the transport can: the side that dialled the session offers a new one. So it is with the last one,
/// for which work waits. `ReconnectPolicy` says how often and for how long.
///
/// Where the transport can, the first one of each rail serves before the others are opened
/// (docs/decisions/channels-follow.md).
///
/// Where the transport can, there are spare places, whose channels are opened while those that are up have
/// much to do and the path is long (docs/decisions/more-streams.md).
///
/// Where the transport can, all of them rest when nothing has used them for `Options::idle`, and are opened
/// again by the next use (docs/decisions/idle-streams.md).
///
/// Channels are numbered on the wire: the place, plus kMaxChannels for each one that was there before. Not
/// thread-safe: LaneSet guards it, and calls it on the reactor's thread.
class ChannelSet {
 public:
  using Clock = std::chrono::steady_clock;

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

    /// Are told when the lane has work for channels that rest, and when it has much; on any thread.
    std::function<void()> want;
    std::function<void()> bulk;
  };

  /// What became of the set by a call.
  enum class News : std::uint8_t { kNone, kServing, kLost };

  explicit ChannelSet(Setup setup);

  const std::shared_ptr<Lane>& lane() const { return lane_; }
  std::size_t size() const { return places_.size(); }
  bool cleared() const { return cleared_; }
  bool rests() const { return rest_ != Rest::kNo; }

  /// The connector makes as many channels as the rails have: their addresses, empty for spare places.
  Result<std::vector<Bytes>> open();

  /// The acceptor makes as many as both have.
  Result<std::vector<Bytes>> answer(const std::vector<Bytes>& offered);

  /// Leaves the first `addresses.size()` channels and connects them to those.
  Status connect(const std::vector<Bytes>& addresses);

  /// A channel is up or has failed. kServing: the first ones are up, and the others up, failed or late;
  /// kLost: none is left, for `why()`.
  News changed(std::uint32_t channel, const Status& status);

  /// The other side dialled anew for a channel that failed, or answers that.
  Status on(const wire::ChannelReopen& offer);
  Status on(const wire::ChannelReopened& answer);

  /// The connector lets its channels rest, or the acceptor asks for it; the acceptor wants them again.
  Status on(const wire::ChannelsRest& rest);
  Status on(const wire::ChannelsWanted& wanted);

  /// The session has another path: unless the application named interfaces, channels that are opened from now
  /// on take that one.
  void moved(const PeerPath& path);

  /// Opens channels that rest, or asks the peer to.
  void wake();

  /// The lane has much to do: looks for a while whether more channels would help.
  void watch();

  /// kProtocol for one that never was.
  Status control(wire::ChannelControl message);

  /// Does what is due; `serving`: both sides said that they do. The news, as `changed`.
  News tick(Clock::time_point now, bool serving);

  /// It waits for none that is not up yet. The news, as `changed`.
  News hurry();

  /// When something is due next; nothing: never.
  std::optional<Clock::time_point> next_tick() const;

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
  using Place = ChannelEntry;

  enum class Rest : std::uint8_t {
    kNo,
    kAsleep,  ///< the lane has no channel, and what is left of them ends
    kWaking,  ///< they are opened again
    kLost,    ///< so they are, since all were lost: until one is up
  };

  const Transport& transport() const { return *setup_.context->transports()[setup_.transport].transport; }
  std::string name() const { return std::string(transport().name()); }
  std::uint32_t number(const Place& place) const;
  Result<std::shared_ptr<ChannelRunner>> open_runner(const Rail& rail, std::uint32_t number);
  Result<Place*> find(std::uint32_t channel);
  bool reopens() const;
  bool rests_at_all() const;
  bool settled() const;
  std::size_t ready() const;
  void plan(std::size_t most);
  std::size_t wanted() const;
  bool has_spare() const { return wanted() != places_.size(); }
  void recount();
  void make_spare(Place& place);
  void look_for_growth(Clock::time_point now);
  void grow();
  std::size_t opened() const;
  bool has_followers() const;
  bool may_follow() const;
  void take_offer(Place& place, const Bytes& offered, bool peer_has_spare);
  void await_followers(Clock::time_point now);
  void open_followers(Clock::time_point now, bool serving);
  Result<std::vector<Bytes>> open_planned();
  void note_loss(Place& place, std::string_view why);
  void end_last(Place& place, std::uint32_t channel);
  void lose(Place& place, const Error& why);
  void reopen(Place& place);
  std::optional<Clock::time_point> unused_since() const;
  void look_for_use(Clock::time_point now, bool serving);
  void rest();
  void fall_asleep();
  void await_channels(std::chrono::milliseconds time);
  void await_return();
  void heard_of_channels();
  bool given_up();
  bool keep_waiting(Clock::time_point now);
  void stay_awake(Clock::time_point now);
  News news();

  Setup setup_;
  const std::shared_ptr<Lane> lane_;
  std::vector<Place> places_;
  std::vector<std::shared_ptr<ChannelRunner>> trash_;
  Error why_;
  bool attached_ = false;
  bool serves_ = false;
  bool cleared_ = false;
  std::optional<Clock::time_point> leave_by_;  // then the channels that were left are stopped
  std::optional<Clock::time_point> late_at_;   // from then on it serves without those that are not up yet
  Rest rest_ = Rest::kNo;
  std::optional<Clock::time_point> look_at_;  // whether channels are used; while they are up
  std::optional<Clock::time_point> grow_at_;  // whether more are wanted; while there is much to do
  Clock::time_point no_more_until_;           // the last one more could not be opened
  unsigned busy_looks_ = 0;
  std::optional<Clock::time_point> wake_by_;    // one must be up; while all are opened again
  std::optional<Clock::time_point> follow_at_;  // others are opened; while some are not
  bool followed_ = false;                       // some were
  bool hurries_ = false;                        // all of them are wanted now
};

}  // namespace p2p::engine
