// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A lane's channels: they come, go, and rest.
#include <fmt/format.h>

#include <utility>

#include "engine/schedule/lane.h"

namespace p2p::engine {

void Lane::add(std::shared_ptr<ChannelRunner> runner) {
  MutexLock lock(mutex_);
  set_runners(runners_.with(std::move(runner)));
  wanted_ = rests_ = false;
  interrupted_.store(false, std::memory_order_relaxed);
}

void Lane::remove(const ChannelRunner& runner) {
  RunnerList left;
  {
    MutexLock lock(mutex_);
    // One that the peer did not take up never was in the lane, whose own may still be on their way here.
    if (!runners_.has(runner)) return;
    left = runners_.without(runner);
    set_runners(left);
    interrupted_.store(left.empty(), std::memory_order_relaxed);
  }
  if (!left.empty()) left.first()->signal();
}

void Lane::forget_runners() {
  MutexLock lock(mutex_);
  set_runners({});
  wanted_ = false;
  rests_ = true;
  interrupted_.store(false, std::memory_order_relaxed);
}

void Lane::set_runners(RunnerList runners) {
  runners_ = std::move(runners);
  serves_.store(!runners_.empty());
}

bool Lane::waits() const { return queued() != 0 || !dependent_.empty(); }

void Lane::want_channels(PostUnlockActions& actions) {
  if (!want_) return;
  MutexLock lock(mutex_);
  if (refusal_ || !runners_.empty() || std::exchange(wanted_, true)) return;
  actions.call(want_);
}

void Lane::refuse_all(const Refusal& refusal, PostUnlockActions& actions) {
  {
    MutexLock lock(mutex_);
    if (refusal_ && (refusal.reroute || !refusal_->reroute)) return;
    refusal_ = refusal;
    queue_.refuse_all(refusal, actions);
    note_queued();
  }
  dependent_.close(refusal, actions);
}

std::string Lane::describe() const {
  const std::size_t expected = expected_.load(std::memory_order_relaxed);
  MutexLock lock(mutex_);
  if (!rests_) return runners_.describe(expected);
  return fmt::format("{} channel{} at rest, opened by the next use", expected, expected == 1 ? "" : "s");
}

void Lane::wake_all() {
  PostUnlockActions actions;
  RunnerList all;
  {
    MutexLock lock(mutex_);
    all = runners_;
    if (all.empty()) {  // nobody else drops what is aborted, until one comes
      queue_.drop_aborted(actions);
      note_queued();
    }
  }
  all.signal(all.size(), 0);
  actions.run();
}

RunnerList Lane::runners() const {
  MutexLock lock(mutex_);
  return runners_;
}

}  // namespace p2p::engine
