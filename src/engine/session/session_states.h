// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "p2p/result.h"

namespace p2p::engine {

/// Where a session is in its life. docs/session.md has the table of states and events.
enum class SessionState : std::uint8_t {
  kConnecting,  ///< dials, or shakes hands
  kLive,
  kSuspended,  ///< its connection broke, and another one may take its place
  kResuming,   ///< another one has proven to be the peer's, and takes it
  kDraining,   ///< closes, once what is queued has left
  kEnded
};

enum class SessionEvent : std::uint8_t {
  kOpened,     ///< the handshake is done
  kRefused,    ///< this side gives the peer up, and a word of that waits to leave
  kClosed,     ///< this side closes; its last messages are to leave
  kAbandoned,  ///< this side closes, since it takes the peer for gone
  kBroke,      ///< the connection broke, and both sides can go on over another one
  kProven,     ///< another connection is the peer's
  kMoved,      ///< the session has moved to it
  kAllSent,    ///< nothing waits to leave any more
  kFailed      ///< for good: by the peer's end, a breach, or an error here
};

inline constexpr int kSessionStates = static_cast<int>(SessionState::kEnded) + 1;
inline constexpr int kSessionEvents = static_cast<int>(SessionEvent::kFailed) + 1;

std::string_view to_string(SessionState state);

/// The life of one session, without its sockets: which event leads where, for how long a state may last, and
/// why it was entered. One thread.
class SessionStates {
 public:
  using Clock = std::chrono::steady_clock;

  struct Limits {
    Clock::time_point handshake;  ///< it is done by then
    Clock::duration suspended{};  ///< longer than whoever looks for another connection takes to give up
    Clock::duration draining{};
    Clock::duration lingering{};  ///< the rest of draining, once all has left
  };

  explicit SessionStates(Limits limits) : limits_(limits), limit_(limits.handshake) {}

  SessionState state() const { return state_; }
  bool is(SessionState state) const { return state_ == state; }

  /// Where the event leads from here; the state itself where it changes nothing.
  SessionState next(SessionEvent event) const;

  /// False if the event changes nothing in this state. `why` is kept for kSuspended, kDraining and kEnded; a
  /// session that drains has its reason already.
  bool on(SessionEvent event, Clock::time_point now, std::optional<Error> why = {});

  /// When the state has lasted too long; nothing: it may last. Whoever owns the session ends it then, by
  /// kFailed.
  std::optional<Clock::time_point> limit() const { return limit_; }

  /// Why it is suspended, drains or has ended.
  const Error& why() const { return *why_; }

  /// The state has lasted since then.
  Clock::time_point since() const { return since_; }

 private:
  const Limits limits_;
  SessionState state_ = SessionState::kConnecting;
  std::optional<Clock::time_point> limit_;
  std::optional<Error> why_;
  Clock::time_point since_;
};

}  // namespace p2p::engine
