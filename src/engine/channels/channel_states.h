// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/channels/channel_plan.h"
#include "engine/channels/channel_table.h"
#include "engine/channels/growth_trial.h"
#include "engine/channels/reconnect_policy.h"

namespace p2p::engine {

/// Decides when the channels of one transport are opened, tried again and closed. It has no threads and no
/// clock: events change states, and `reconcile` says what is to be done. The connector keeps as many channels
/// open as `target` says; the acceptor follows what the peer opens. Not thread-safe.
class ChannelStates {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = std::optional<Clock::time_point>;
  using Kind = ChannelKind;
  using Rules = ChannelRules;
  using Traffic = ChannelTraffic;
  using Do = ChannelWork;
  using Action = ChannelAction;

  /// Why all have ended.
  enum class Ending : std::uint8_t { kNone, kFailed, kExhausted, kTimedOut, kHung };

  explicit ChannelStates(const Rules& rules) : rules_(rules) {}

  // Until kAttach: the channels, all absent until kOffer.
  void add(Kind kind);
  void make(std::size_t channel, Kind kind);
  void drop_last() { channels_.pop_back(); }

  void on(std::size_t channel, ChannelEvent event, Clock::time_point now);
  void on(PoolEvent event, Clock::time_point now);

  /// Compares the channels with the target, and deadlines with `now`. What is to be done, in this order.
  std::vector<Action> reconcile(Clock::time_point now, const Traffic& traffic);
  bool wants_traffic(Clock::time_point now) const;
  bool wants_idle(Clock::time_point now) const { return lower_at_ && now >= *lower_at_; }

  /// When `reconcile` is due next; nothing: after the next event.
  Time next_deadline() const;

  std::size_t size() const { return channels_.size(); }
  Kind kind(std::size_t channel) const { return channels_[channel].kind; }
  Connectivity state(std::size_t channel) const { return channels_[channel].state; }
  Time deadline(std::size_t channel) const { return channels_[channel].deadline; }
  PoolPhase phase() const { return phase_; }
  bool ended() const { return phase_ >= PoolPhase::kLeaving; }
  Ending ending() const { return ending_; }

  /// How many channels are to be open now. The acceptor's tells how many it waits for.
  std::size_t target() const { return target_; }
  std::size_t ready() const { return count(Connectivity::kReady); }
  std::size_t open() const { return size() - count(Connectivity::kAbsent); }

  /// How many there are when none has failed, those that are deferred or idle included.
  std::size_t expected() const;

  /// Some may still be opened besides those that are.
  bool may_grow() const;

 private:
  struct Channel {
    Kind kind;
    Connectivity state = Connectivity::kAbsent;
    Time deadline;  // kBackoff: to be tried again; kConnecting: to be up
    ReconnectPolicy policy;
  };

  std::size_t count(Connectivity state) const;
  std::size_t up_to(Kind kind) const;
  bool opens() const;
  bool settled() const;
  bool has_deferred() const;
  bool may_raise() const;
  AfterFailure after_failure(const Channel& channel) const;
  void failed(Channel& channel, Connectivity before, Clock::time_point now);
  void serve(Clock::time_point now);
  void end(Ending why);
  void interrupt(Clock::time_point now);
  void heard(Clock::time_point now);
  void close_all(ChannelEvent how);
  void await_deadline(Clock::time_point until);
  void grow(Clock::time_point now);
  bool exhausted() const;
  void check_channels(Clock::time_point now, std::vector<Action>& actions);
  void check_phase(Clock::time_point now);
  void check_deadline(Clock::time_point now);
  void check_idle(Clock::time_point now, const Traffic& traffic, std::vector<Action>& actions);
  void check_growth(Clock::time_point now, const Traffic& traffic, std::vector<Action>& actions);
  void look_at_load(Clock::time_point now, const Traffic& traffic, std::vector<Action>& actions);
  void look_at_short_path(Clock::time_point now, const Traffic& traffic, std::vector<Action>& actions);
  void give_back(std::size_t count, std::vector<Action>& actions);
  void open_missing(std::vector<Action>& actions);

  const Rules rules_;
  std::vector<Channel> channels_;
  PoolPhase phase_ = PoolPhase::kNegotiating;
  Ending ending_ = Ending::kNone;
  bool peer_serves_ = false;
  std::size_t target_ = 0;
  unsigned busy_looks_ = 0;  // in a row
  bool peer_busy_ = false;   // the acceptor says so, and bytes move
  std::uint64_t moved_ = 0;  // until the last look
  GrowthTrial trial_;        // the connector's
  Time deadline_;            // of the phase
  Time lower_at_;            // whether nothing uses the channels is looked at
  Time raise_at_;            // whether more are to be opened is
  Time hold_until_;          // no surplus ones are opened, since one could not be
};

}  // namespace p2p::engine
