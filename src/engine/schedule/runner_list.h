// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/schedule/channel_runner.h"
#include "engine/schedule/policy.h"

namespace p2p::engine {

/// The channels of a lane that are up, in the order of their numbers and so in the same one on both sides,
/// whichever came up first. A value that never changes: whoever goes through one is not disturbed by channels
/// that come and go. Copies cost nothing.
class RunnerList {
 public:
  RunnerList() : runners_(std::make_shared<List>()) {}

  RunnerList with(std::shared_ptr<ChannelRunner> runner) const;
  RunnerList without(const ChannelRunner& runner) const;

  auto begin() const { return runners_->begin(); }
  auto end() const { return runners_->end(); }
  std::size_t size() const { return runners_->size(); }
  bool empty() const { return runners_->empty(); }
  const std::shared_ptr<ChannelRunner>& first() const { return runners_->front(); }

  /// Any number will do: they are counted round.
  const std::shared_ptr<ChannelRunner>& at(std::size_t number) const {
    return (*runners_)[number % runners_->size()];
  }
  bool has(const ChannelRunner& runner) const;

  /// The first that carries messages; null: none does.
  std::shared_ptr<ChannelRunner> message_runner() const;

  /// They are of more than one rail, which may differ in speed.
  bool of_several_rails() const { return several_rails_; }

  /// None has items under way.
  bool none_inflight() const;

  /// The first that has none; null: all have.
  std::shared_ptr<ChannelRunner> idle() const;

  /// Wakes `count` of them, at most all, from number `first` on.
  void signal(std::size_t count, std::size_t first) const;

  /// One that had a turn on this thread, in which it took what there was as far as it had room for it; of
  /// those who take turns only that with the number `turn` is tried. Null: others were at them.
  std::shared_ptr<ChannelRunner> start_here(const Policy& policy, std::size_t turn,
                                            PostUnlockActions& actions) const;

  /// Moves one of them on from a waiting caller's thread, as `engine::assist` does, or all if `all` and they
  /// are few: more are moved quicker by their workers.
  void assist(const std::shared_ptr<ChannelRunner>& one, bool all, const Policy& policy,
              const std::function<bool()>& through, ChannelRunner::Clock::time_point deadline) const;

  /// Has channels that are stalled give up, so that what they have goes again over others, if of another rail
  /// something was heard meanwhile and none of it stands still: a busy machine holds up all of them. What is
  /// at rest is probed, and known the next time.
  void give_up_stalled() const;

  /// How many of them are encrypted.
  std::size_t encrypted() const;

  /// How many there are, of how many if that is more, and one of each rail as it describes itself.
  std::string describe(std::size_t expected = 0) const;

 private:
  using List = std::vector<std::shared_ptr<ChannelRunner>>;

  explicit RunnerList(List list);

  std::shared_ptr<const List> runners_;
  bool several_rails_ = false;
};

}  // namespace p2p::engine
