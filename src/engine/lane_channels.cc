// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A lane's channels: they come, go, and rest.
#include <fmt/format.h>

#include <utility>

#include "engine/lane.h"

namespace p2p::engine {

void Lane::add(std::shared_ptr<Slot> slot) {
  MutexLock lock(mutex_);
  slots_ = slots_.with(std::move(slot));
  wanted_ = false;
}

void Lane::remove(const Slot& slot, const Error& error, Deferred& deferred) {
  Slots left;
  {
    MutexLock lock(mutex_);
    // One that the peer did not take up never was in the lane, whose own may still be on their way here.
    if (!slots_.has(slot)) return;
    left = slots_ = slots_.without(slot);
  }
  if (!left.empty()) return left.oldest()->signal();
  if (!want_) close(error, deferred);
}

void Lane::forget_slots() {
  MutexLock lock(mutex_);
  slots_ = Slots();
  wanted_ = false;
}

bool Lane::waits() const {
  MutexLock lock(mutex_);
  return !pieces_.empty() || !returned_.empty() || !gated_.empty();
}

void Lane::want_channels(Deferred& deferred) {
  if (!want_) return;
  MutexLock lock(mutex_);
  if (error_ || !slots_.empty() || std::exchange(wanted_, true)) return;
  deferred.call(want_);
}

void Lane::close(const Error& error, Deferred& deferred) {
  {
    MutexLock lock(mutex_);
    if (!error_) error_ = error;
    for (Piece& piece : pieces_) piece.fail(error, deferred);
    for (Piece& piece : returned_) piece.fail(error, deferred);
    pieces_.clear();
    returned_.clear();
  }
  gated_.close(error, deferred);
}

std::string Lane::describe() const {
  const std::size_t expected = expected_.load(std::memory_order_relaxed);
  const Slots slots = this->slots();
  if (!slots.empty() || !want_) return slots.describe(expected);
  return fmt::format("{} channel{} at rest, opened by the next use", expected, expected == 1 ? "" : "s");
}

Slots Lane::slots() const {
  MutexLock lock(mutex_);
  return slots_;
}

}  // namespace p2p::engine
