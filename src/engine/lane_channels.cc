// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A lane's channels: they come, go, and rest.
#include <fmt/format.h>

#include <utility>

#include "engine/lane.h"

namespace p2p::engine {
namespace {

void drop_doomed(std::deque<Piece>& pieces, Deferred& deferred) {
  std::erase_if(pieces, [&](Piece& piece) {
    const bool doomed = piece.submission->doomed();
    if (doomed) piece.drop(deferred);
    return doomed;
  });
}

}  // namespace

void Lane::add(std::shared_ptr<Slot> slot) {
  MutexLock lock(mutex_);
  slots_ = slots_.with(std::move(slot));
  wanted_ = rests_ = false;
  interrupted_.store(false, std::memory_order_relaxed);
}

void Lane::remove(const Slot& slot) {
  Slots left;
  {
    MutexLock lock(mutex_);
    // One that the peer did not take up never was in the lane, whose own may still be on their way here.
    if (!slots_.has(slot)) return;
    left = slots_ = slots_.without(slot);
    interrupted_.store(left.empty(), std::memory_order_relaxed);
  }
  if (!left.empty()) left.first()->signal();
}

void Lane::forget_slots() {
  MutexLock lock(mutex_);
  slots_ = Slots();
  wanted_ = false;
  rests_ = true;
  interrupted_.store(false, std::memory_order_relaxed);
}

bool Lane::waits() const {
  MutexLock lock(mutex_);
  return !pieces_.empty() || !returned_.empty() || !gated_.empty();
}

void Lane::want_channels(Deferred& deferred) {
  if (!want_) return;
  MutexLock lock(mutex_);
  if (refusal_ || !slots_.empty() || std::exchange(wanted_, true)) return;
  deferred.call(want_);
}

void Lane::refuse_all(const Refusal& refusal, Deferred& deferred) {
  {
    MutexLock lock(mutex_);
    if (refusal_ && (refusal.detour || !refusal_->detour)) return;
    refusal_ = refusal;
    for (Piece& piece : returned_) piece.refuse(refusal, deferred);
    for (Piece& piece : pieces_) piece.refuse(refusal, deferred);
    pieces_.clear();
    returned_.clear();
  }
  gated_.close(refusal, deferred);
}

std::string Lane::describe() const {
  const std::size_t expected = expected_.load(std::memory_order_relaxed);
  MutexLock lock(mutex_);
  if (!rests_) return slots_.describe(expected);
  return fmt::format("{} channel{} at rest, opened by the next use", expected, expected == 1 ? "" : "s");
}

void Lane::wake_all() {
  Deferred deferred;
  Slots all;
  {
    MutexLock lock(mutex_);
    all = slots_;
    if (all.empty()) {  // nobody else drops what is doomed, until one comes
      drop_doomed(pieces_, deferred);
      drop_doomed(returned_, deferred);
    }
  }
  all.signal(all.size(), 0);
  deferred.run();
}

Slots Lane::slots() const {
  MutexLock lock(mutex_);
  return slots_;
}

}  // namespace p2p::engine
