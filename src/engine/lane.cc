// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/lane.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/relax.h"
#include "engine/worker.h"

namespace p2p::engine {
namespace {

// Gates that are looked at in one turn, since each look asks a driver.
constexpr std::size_t kLooks = 16;

}  // namespace

void Lane::add(std::shared_ptr<Slot> slot) {
  MutexLock lock(mutex_);
  change_slots([&](Slots& slots) { slots.push_back(std::move(slot)); });
}

// Whoever goes through them has a copy of his own, which costs him nothing.
void Lane::change_slots(const std::function<void(Slots&)>& change) {
  auto slots = std::make_shared<Slots>(*slots_);
  change(*slots);
  slots_ = std::move(slots);
}

void Lane::remove(const Slot& slot, const Error& error, Ended& ended) {
  bool was_there = false;
  std::shared_ptr<Slot> heir;
  {
    MutexLock lock(mutex_);
    change_slots([&](Slots& slots) {
      was_there = std::erase_if(slots, [&](const auto& one) { return one.get() == &slot; }) != 0;
    });
    if (!slots_->empty()) heir = slots_->front();
  }
  // One that the peer did not take up never was in the lane, whose own may still be on their way here.
  if (!was_there) return;
  if (!heir) return close(error, ended);
  heir->worker->signal(heir);
}

std::shared_ptr<Slot> Lane::submit(std::shared_ptr<Part> part, Ended& ended) {
  const std::uint64_t bytes = part->portion->bytes;
  const bool single = part->portion->segments.size() == 1;
  const Gate* const gate = part->submission->gate();
  const Result<bool> open = gate == nullptr ? true : gate->open();
  std::shared_ptr<const Slots> slots;
  {
    MutexLock lock(mutex_);
    if (error_ || !open) {
      part->submission->set_error(error_ ? *error_ : open.error());
      part->close_one(ended);
      return nullptr;
    }
    if (!*open) waiting_.fetch_add(1, std::memory_order_relaxed);
    (*open ? parts_ : gated_).push_back(std::move(part));
    slots = slots_;
  }
  if (slots->empty()) return nullptr;
  // A device starts one long copy as fast as a short one; long lists are the workers' to write.
  const std::uint64_t most = !device_copies_ ? kInlineBytes : single ? limits_.bytes : kInlineDeviceBytes;
  if (!*open) {
    signal(0, *slots, 0);
    return bytes <= most ? slots->front() : nullptr;
  }
  const std::size_t first = turn_.fetch_add(1, std::memory_order_relaxed);
  if (bytes <= most) {
    if (auto slot = start_here(*slots, first, ended)) return slot;
  }
  signal(bytes, *slots, first);
  return nullptr;
}

// Wakes as many channels as so many bytes are worth.
void Lane::signal(std::uint64_t bytes, const Slots& slots, std::size_t first) const {
  const std::size_t wanted = std::min<std::size_t>(slots.size(), bytes / limits_.bytes + 1);
  for (std::size_t i = 0; i < wanted; ++i) {
    const auto& slot = slots[(first + i) % slots.size()];
    slot->worker->signal(slot);
  }
}

bool Lane::awaits_gates(const Slot& slot) const {
  if (waiting_.load(std::memory_order_relaxed) == 0) return false;
  MutexLock lock(mutex_);
  return !slots_->empty() && slots_->front().get() == &slot;
}

void Lane::look_at_gates(const Slot& slot, Ended& ended) {
  if (!awaits_gates(slot)) return;
  std::deque<std::shared_ptr<Part>> gated;
  {
    MutexLock lock(mutex_);
    gated.swap(gated_);
  }
  std::deque<std::shared_ptr<Part>> open;
  std::deque<std::shared_ptr<Part>> shut;
  std::deque<std::shared_ptr<Part>> unseen;
  std::size_t looks = 0;
  for (auto& part : gated) {
    if (part->submission->doomed()) {
      drop(part, ended);
    } else if (looks == kLooks) {
      unseen.push_back(std::move(part));
    } else {
      ++looks;
      const Result<bool> now = part->submission->gate()->open();
      if (now) {
        (*now ? open : shut).push_back(std::move(part));
      } else {
        part->submission->set_error(now.error());
        part->close_one(ended);
      }
    }
  }
  // Those that were not looked at have the next turn.
  unseen.insert(unseen.end(), std::make_move_iterator(shut.begin()), std::make_move_iterator(shut.end()));
  waiting_.fetch_sub(gated.size() - unseen.size(), std::memory_order_relaxed);
  let_in(std::move(open), std::move(unseen), ended);
}

// The lane may have been closed while nobody saw these parts.
void Lane::let_in(std::deque<std::shared_ptr<Part>> open, std::deque<std::shared_ptr<Part>> shut,
                  Ended& ended) {
  std::uint64_t bytes = 0;
  for (const auto& part : open) bytes += part->portion->bytes;
  std::optional<Error> closed;
  std::shared_ptr<const Slots> slots;
  {
    MutexLock lock(mutex_);
    closed = error_;
    if (!closed) {
      parts_.insert(parts_.end(), open.begin(), open.end());
      gated_.insert(gated_.begin(), shut.begin(), shut.end());
      slots = slots_;
    }
  }
  if (!closed) {
    if (bytes > limits_.bytes) signal(bytes, *slots, 0);
    return;
  }
  waiting_.fetch_sub(shut.size(), std::memory_order_relaxed);
  open.insert(open.end(), shut.begin(), shut.end());
  for (const auto& part : open) {
    part->submission->set_error(*closed);
    part->close_one(ended);
  }
}

// The channel whose next piece was started on this thread, as far as it had room for it.
std::shared_ptr<Slot> Lane::start_here(const Slots& slots, std::size_t first, Ended& ended) {
  if (device_copies_) return start_copy_here(slots, ended);
  const auto& slot = slots[first % slots.size()];
  return slot->worker->try_turn(*slot, ended) != Turn::kBusy ? slot : nullptr;
}

// They go to the first channel as long as it is free: a device that is kept ready for short ones is so for
// one channel, and long ones on several channels at once share the way and are slower together. A worker that
// only looks is gone within a microsecond; one that starts long lists is not waited for.
std::shared_ptr<Slot> Lane::start_copy_here(const Slots& slots, Ended& ended) {
  constexpr int kTries = 50;
  for (const auto& slot : slots) {
    for (int tries = kTries; tries > 0; --tries) {
      if (slot->worker->try_turn(*slot, ended) != Turn::kBusy) return slot;
      relax();
    }
  }
  return nullptr;
}

void Lane::drop(const std::shared_ptr<Part>& part, Ended& ended) {
  part->submission->set_dropped();
  part->close_one(ended);
}

std::optional<Piece> Lane::take(Ended& ended) {
  MutexLock lock(mutex_);
  while (!returned_.empty()) {
    Piece piece = std::move(returned_.front());
    returned_.pop_front();
    if (!piece.part->submission->doomed()) return piece;
    drop(piece.part, ended);
  }
  while (!parts_.empty()) {
    std::shared_ptr<Part> part = std::move(parts_.front());
    parts_.pop_front();
    if (part->submission->doomed()) {
      drop(part, ended);
      continue;
    }
    Piece piece{part, next_cut(part->portion->segments, part->cursor, limits_)};
    if (part->cursor.segment < part->portion->segments.size()) {
      part->open.fetch_add(1, std::memory_order_relaxed);
      parts_.push_back(std::move(part));
    }
    return piece;
  }
  return std::nullopt;
}

void Lane::give_back(Piece piece) {
  MutexLock lock(mutex_);
  returned_.push_back(std::move(piece));
}

void Lane::wake_all() {
  const auto all = slots();
  for (const auto& slot : *all) slot->worker->signal(slot);
}

void Lane::close(const Error& error, Ended& ended) {
  std::deque<std::shared_ptr<Part>> parts;
  std::deque<Piece> returned;
  {
    MutexLock lock(mutex_);
    if (!error_) error_ = error;
    parts.swap(parts_);
    waiting_.fetch_sub(gated_.size(), std::memory_order_relaxed);
    parts.insert(parts.end(), gated_.begin(), gated_.end());
    gated_.clear();
    returned.swap(returned_);
  }
  for (const auto& part : parts) {
    part->submission->set_error(error);
    part->close_one(ended);
  }
  for (const auto& piece : returned) {
    piece.part->submission->set_error(error);
    piece.part->close_one(ended);
  }
}

std::size_t Lane::channels() const {
  MutexLock lock(mutex_);
  return slots_->size();
}

std::string Lane::describe() const {
  MutexLock lock(mutex_);
  std::map<std::string_view, std::string_view> rails;
  for (const auto& slot : *slots_) rails.emplace(slot->rail, slot->description);
  std::string text = fmt::format("{} channel{}", slots_->size(), slots_->size() == 1 ? "" : "s");
  std::string_view separator = ": ";
  for (const auto& [rail, description] : rails) {
    text.append(std::exchange(separator, "; ")).append(description);
  }
  return text;
}

std::shared_ptr<const Lane::Slots> Lane::slots() const {
  MutexLock lock(mutex_);
  return slots_;
}

void Lane::assist(const TransferState& state, Clock::time_point deadline) {
  // With many channels the workers are quicker than one caller that looks at all of them.
  constexpr std::size_t kFew = 4;
  const auto slots = this->slots();
  if (slots->size() <= kFew) drive(*slots, state, deadline);
}

void Lane::assist(const TransferState& state, Clock::time_point deadline,
                  const std::shared_ptr<Slot>& started) {
  const auto slots = this->slots();
  const bool there = std::find(slots->begin(), slots->end(), started) != slots->end();
  if (there) drive({&started, 1}, state, deadline);
}

void Lane::drive(std::span<const std::shared_ptr<Slot>> slots, const TransferState& state,
                 Clock::time_point deadline) {
  std::vector<Assist> assists;
  assists.reserve(slots.size());
  for (const auto& slot : slots) {
    while (!assists.emplace_back(*slot).begun()) {
      assists.pop_back();
      if (!device_copies_ || state.done() || Clock::now() > deadline) return;
      relax();
    }
  }
  Ended ended;
  auto moved_at = Clock::now();
  while (!state.done()) {
    bool moved = false;
    for (const auto& slot : slots) {
      const Turn turn = slot->worker->try_turn(*slot, ended);
      if (turn == Turn::kBusy && !device_copies_) return;
      moved = moved || turn == Turn::kMoved;
    }
    const auto now = Clock::now();
    if (moved) moved_at = now;
    if (now - moved_at > spin_ || now > deadline) return;
  }
}

}  // namespace p2p::engine
