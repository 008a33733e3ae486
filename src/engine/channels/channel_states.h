// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/channels/reconnect_policy.h"

namespace p2p::engine {

/// Where one channel is. docs/channels.md has the table of states and events.
enum class Connectivity : std::uint8_t {
  kAbsent,      ///< not open: not wanted, or the peer's to open
  kOffered,     ///< the peer was told of it and has not answered
  kConnecting,  ///< each side knows the other's address
  kReady,
  kDraining,  ///< gets no more work, and ends by itself
  kBackoff,   ///< failed, and tried again at its deadline
  kShutdown,  ///< failed, and the transport cannot open it again
};

enum class ChannelEvent : std::uint8_t {
  kOffer,    ///< made here, and offered
  kConnect,  ///< the peer's address came
  kUp,
  kFail,   ///< it failed, could not be made, or did not come up in time
  kDrain,  ///< it is to end once what is under way is over
  kClose,  ///< it was closed here
};

/// What becomes of a channel that has failed.
enum class AfterFailure : std::uint8_t { kRetry, kForget, kNever };

Connectivity next_state(Connectivity state, ChannelEvent event, AfterFailure after);

/// Where all channels of one transport are together.
enum class PoolPhase : std::uint8_t {
  kNegotiating,  ///< the peer's addresses have not come
  kStarting,     ///< until the first ones are up, or failed, or late
  kServing,
  kIdle,         ///< closed, until either side has a use for them
  kWaking,       ///< and opened again
  kInterrupted,  ///< all were lost, and come back
  kLeaving,      ///< the peer has given the transport up: they end by themselves
  kEnded,
};

enum class PoolEvent : std::uint8_t {
  kAttach,      ///< the peer's addresses came
  kPeerServes,  ///< it has said that its first channels are up
  kHurry,       ///< wait for none that is not up yet
  kBulk,        ///< a large transfer has come
  kBusy,        ///< and finds work that is under way
  kWanted,      ///< work waits for channels that are idle
  kPeerWanted,  ///< the acceptor has a use for channels, or for more
  kIdle,        ///< all are closed for want of use
  kHeard,       ///< the peer takes part in opening one
  kLeave,
  kEnd,
};

PoolPhase next_phase(PoolPhase phase, PoolEvent event, bool any_ready);

/// Decides when the channels of one transport are opened, tried again and closed. It has no threads and no
/// clock: events change states, and `reconcile` says what is to be done. The connector keeps as many channels
/// open as `target` says; the acceptor follows what the peer opens. Not thread-safe.
class ChannelStates {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = std::optional<Clock::time_point>;

  /// In the order in which they are opened.
  enum class Kind : std::uint8_t {
    kFirst,     ///< of each rail; or all, where the transport does not defer any
    kDeferred,  ///< opened once the first ones serve
    kSurplus,   ///< opened while the others are busy over a long path
  };

  struct Rules {
    bool connector = true;
    bool reopens = false;      ///< a channel that failed can be opened again
    bool closes_idle = false;  ///< all are closed when nothing uses them
    std::chrono::milliseconds idle{0};
    std::chrono::milliseconds keepalive{0};
    std::chrono::milliseconds hung{0};
    std::chrono::milliseconds connect_timeout{0};
  };

  /// What the channels do, as `reconcile` needs it where `wants_traffic` says so.
  struct Traffic {
    Time unused_since;  ///< where `wants_idle`; nothing: they are in use, or come up
    bool busy = false;  ///< much is under way, or work waits
    std::chrono::microseconds round_trip{0};
  };

  enum class Do : std::uint8_t {
    kOpen,        ///< the channel: make it and offer it, by kFail if that fails; its state is kOffered by now
    kAbort,       ///< it is late: stop it unless it is up, by kFail if it is not
    kCloseIdle,   ///< the connector: close all, by kIdle; the acceptor: ask for that
    kAskForMore,  ///< the acceptor
    kCutSmall,    ///< cut work into small batches, for many channels
    kWatch,       ///< tell of the next large transfer, by kBulk or kBusy
  };
  struct Action {
    Do what;
    std::size_t channel = 0;
    friend bool operator==(const Action&, const Action&) = default;
  };

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
  void open_missing(std::vector<Action>& actions);

  const Rules rules_;
  std::vector<Channel> channels_;
  PoolPhase phase_ = PoolPhase::kNegotiating;
  Ending ending_ = Ending::kNone;
  bool peer_serves_ = false;
  std::size_t target_ = 0;
  unsigned busy_looks_ = 0;  // in a row
  Time deadline_;            // of the phase
  Time lower_at_;            // whether nothing uses the channels is looked at
  Time raise_at_;            // whether more are to be opened is
  Time hold_until_;          // no surplus ones are opened, since one could not be
};

}  // namespace p2p::engine
