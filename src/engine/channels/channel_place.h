// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/channels/channel_states.h"
#include "engine/schedule/channel_runner.h"

namespace p2p::engine {

/// More channels than this between two processes is a mistake or an attack.
inline constexpr std::size_t kMaxChannels = 64;

/// Where one channel is, one after the other: the one that is here, its state among those of all, and those
/// before it that may still be ending. They are numbered on the wire: the place, plus kMaxChannels for each
/// one that was there before. Not thread-safe.
class ChannelPlace {
 public:
  using Clock = ChannelStates::Clock;
  using Runner = std::shared_ptr<ChannelRunner>;
  using Runners = std::vector<Runner>;

  /// Those that are to be stopped go to `ending`. What is given lives longer.
  ChannelPlace(std::size_t index, ChannelStates& states, Runners& ending)
      : number_(static_cast<std::uint32_t>(index)), states_(states), ending_(ending) {}

  std::size_t index() const { return number_ % kMaxChannels; }

  /// Of the one that is here, was here last, or comes.
  std::uint32_t number() const { return number_; }
  bool is_first() const { return number_ < kMaxChannels; }

  /// Null: none is here.
  const Runner& runner() const { return runner_; }

  Connectivity state() const { return states_.state(index()); }
  void on(ChannelEvent event) { states_.on(index(), event, Clock::now()); }

  /// The one with this number, be it here or at its end; null: it is gone, or never was.
  Runner find(std::uint32_t number) const;

  /// It is here, to be offered by the address that this returns.
  Bytes offer(Runner runner);
  Status connect(const Bytes& address);

  /// It is to be stopped, and may be tried again later.
  void fail();

  /// It is to be stopped, and its end is no loss: no report comes of it.
  void discard();

  /// It is to be stopped.
  void drop();

  /// It ends by itself, while another one may come in its place.
  void retire();
  void end_retired(std::uint32_t number);

  /// The next one gets this number; the one here, if any, is retired.
  void renew(std::uint32_t number);

  /// All are to be stopped.
  void clear();

  void add_to(Runners& runners) const;

  /// One was up and is lost; one is up: whether it comes back after a loss.
  void note_loss() { was_lost_ = true; }
  bool comes_back() { return std::exchange(was_lost_, false); }

 private:
  std::uint32_t number_;
  ChannelStates& states_;
  Runners& ending_;
  Runner runner_;
  Runners retired_;  // the oldest first
  bool was_lost_ = false;
};

}  // namespace p2p::engine
