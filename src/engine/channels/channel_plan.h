// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

/// What ChannelStates is told of, and what it has done.
namespace p2p::engine {

/// In the order in which they are opened.
enum class ChannelKind : std::uint8_t {
  kFirst,     ///< of each rail; or all, where the transport does not defer any
  kDeferred,  ///< opened once the first ones serve
  kSurplus,   ///< opened while the others are busy over a path on which each has a small share
};

struct ChannelRules {
  bool connector = true;
  bool reopens = false;      ///< a channel that failed can be opened again
  bool closes_idle = false;  ///< all are closed when nothing uses them
  std::chrono::milliseconds idle{0};
  std::chrono::milliseconds keepalive{0};
  std::chrono::milliseconds hung{0};
  std::chrono::milliseconds connect_timeout{0};
};

/// What the channels do, as `reconcile` needs it where `wants_traffic` says so.
struct ChannelTraffic {
  std::optional<std::chrono::steady_clock::time_point>
      unused_since;   ///< where `wants_idle`; nothing: they are in use, or come up
  bool busy = false;  ///< much is under way, or work waits
  std::chrono::microseconds round_trip{0};
  std::uint64_t moved = 0;  ///< bytes so far, both ways, by all that were ever up
  bool path_bound = false;  ///< what is to be moved waits for the path
  bool fills_path = false;  ///< those that move have a full share of it
};

enum class ChannelWork : std::uint8_t {
  kOpen,        ///< the channel: make it and offer it, by kFail if that fails; its state is kOffered by now
  kAbort,       ///< it is late: stop it unless it is up, by kFail if it is not
  kCloseIdle,   ///< the connector: close all, by kIdle; the acceptor: ask for that
  kAskForMore,  ///< the acceptor
  kGiveBack,    ///< close the surplus channel, which added nothing; its state is kDraining by now
  kCutSmall,    ///< cut work into small batches, for many channels
  kWatch,       ///< tell of the next large transfer, by kBulk or kBusy
};

struct ChannelAction {
  ChannelWork what;
  std::size_t channel = 0;
  friend bool operator==(const ChannelAction&, const ChannelAction&) = default;
};

}  // namespace p2p::engine
