// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/memory/fence.h"
#include "engine/request/post_unlock_actions.h"
#include "engine/schedule/inflight_table.h"
#include "engine/schedule/policy.h"
#include "engine/schedule/rate_estimator.h"
#include "transport/transport.h"

namespace p2p::engine {

class ChannelRunner;
class Lane;

/// A lane's work on its way through one channel: takes items while the channel has room, posts their batches,
/// and sees to what came of each. Belongs to the channel's runner, whose mutex guards it.
class BatchPipeline {
 public:
  /// `runner`: for whom the lane gives items. What is given lives longer.
  BatchPipeline(const ChannelRunner& runner, Lane& lane, TransferTrace::Way way, RateEstimator& pace);

  /// Moves the channel on, and hands on what it is done with. True if anything moved.
  bool progress(Channel& channel, PostUnlockActions& actions);

  /// Posts what there is, as far as there is room and one turn goes. `first`, if given, goes before what the
  /// lane has. The channel is ready. True if anything was posted.
  bool post(Channel& channel, WorkItem* first, PostUnlockActions& actions);

  /// The last turn ended with room left, for the next one.
  bool has_more() const { return more_; }
  void begin_turn() { more_ = false; }

  /// Something ended after `post`.
  void note_room();

  bool empty() const { return flying_.empty(); }

  /// Asks the channel to leave the local memory of a transfer alone.
  void abandon(const std::shared_ptr<TransferState>& state, Channel& channel);

  /// The channel is gone: as `InflightTable::fail_all`.
  void fail_all(const Error& error, LeavesPeer::Left left, const std::shared_ptr<Fence>& fence,
                PostUnlockActions& actions) {
    flying_.fail_all(error, std::move(left), fence, actions);
  }

 private:
  std::optional<WorkItem> next_item(PostUnlockActions& actions, WorkItem* first);
  void complete(Completion& completion, const Channel& channel, PostUnlockActions& actions);

  const ChannelRunner& runner_;
  Lane& lane_;
  const Policy& policy_;
  RateEstimator& pace_;  // of `flying_`
  InflightTable flying_;
  std::vector<Completion> completions_;  // kept for its capacity
  bool more_ = false;
  bool full_ = false;  // the channel took no more work when it was last given some
};

}  // namespace p2p::engine
