// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/lane.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/relax.h"
#include "engine/assist.h"

namespace p2p::engine {
namespace {

// With more channels the workers are quicker than one caller that looks at all of them.
constexpr std::size_t kFew = 4;

}  // namespace

std::shared_ptr<Slot> Lane::submit(Piece piece, Deferred& deferred) {
  if (const Gate* const gate = piece.submission->gate()) {
    const Result<bool> open = gate->open();
    if (!open) {
      piece.fail(open.error(), deferred);
      return nullptr;
    }
    if (!*open) return submit_gated(std::move(piece), deferred);
  }
  const std::uint64_t bytes = piece.batch.bytes;
  const bool worth_starting = policy().worth_starting(piece.batch);
  std::shared_ptr<const Slots> slots;
  {
    MutexLock lock(mutex_);
    if (error_) {
      piece.fail(*error_, deferred);
      return nullptr;
    }
    pieces_.push_back(std::move(piece));
    slots = slots_;
  }
  if (slots->empty()) return nullptr;
  const std::size_t turn = turn_.fetch_add(1, std::memory_order_relaxed);
  if (worth_starting) {
    if (auto slot = start_here(*slots, turn, deferred)) return slot;
  }
  signal(bytes, *slots, turn);
  return nullptr;
}

// The oldest channel's worker looks at the gate, and so does a caller who drives that channel.
std::shared_ptr<Slot> Lane::submit_gated(Piece piece, Deferred& deferred) {
  const bool worth_starting = policy().worth_starting(piece.batch);
  gated_.add(std::move(piece), deferred);
  const auto slots = this->slots();
  if (slots->empty()) return nullptr;
  slots->front()->signal();
  return worth_starting ? slots->front() : nullptr;
}

// The channel that had a turn on this thread, in which it took what there was as far as it had room for it.
std::shared_ptr<Slot> Lane::start_here(const Slots& slots, std::size_t turn, Deferred& deferred) const {
  const std::span<const std::shared_ptr<Slot>> all = slots;
  for (const auto& slot : policy().takes_turns ? all.subspan(turn % all.size(), 1) : all) {
    for (int looks = policy().looks; looks != 0; --looks) {
      if (slot->try_turn(deferred) != Turn::kBusy) return slot;
      relax();
    }
  }
  return nullptr;
}

// Wakes as many channels as so many bytes are worth.
void Lane::signal(std::uint64_t bytes, const Slots& slots, std::size_t turn) const {
  const std::size_t wanted = std::min<std::size_t>(slots.size(), bytes / policy().limits.bytes + 1);
  for (std::size_t i = 0; i < wanted; ++i) slots[(turn + i) % slots.size()]->signal();
}

std::optional<Piece> Lane::take(Deferred& deferred) {
  MutexLock lock(mutex_);
  while (!returned_.empty()) {
    Piece piece = std::move(returned_.front());
    returned_.pop_front();
    if (!piece.submission->doomed()) return piece;
    piece.drop(deferred);
  }
  while (!pieces_.empty()) {
    Piece rest = std::move(pieces_.front());
    pieces_.pop_front();
    if (rest.submission->doomed()) {
      rest.drop(deferred);
      continue;
    }
    Piece piece = rest.cut(policy().limits);
    if (!rest.empty()) pieces_.push_back(std::move(rest));
    return piece;
  }
  return std::nullopt;
}

void Lane::give_back(Piece piece) {
  MutexLock lock(mutex_);
  returned_.push_back(std::move(piece));
}

void Lane::retry(Piece piece) {
  retried_.fetch_add(1, std::memory_order_relaxed);
  give_back(std::move(piece));
}

bool Lane::awaits_gates(const Slot& slot) const {
  if (gated_.empty()) return false;
  MutexLock lock(mutex_);
  return !slots_->empty() && slots_->front().get() == &slot;
}

void Lane::look_at_gates(const Slot& slot, Deferred& deferred) {
  if (!awaits_gates(slot)) return;
  std::deque<Piece> open = gated_.look(deferred);
  std::uint64_t bytes = 0;
  for (const Piece& piece : open) bytes += piece.batch.bytes;
  std::shared_ptr<const Slots> slots;
  {
    MutexLock lock(mutex_);
    if (error_) {
      for (Piece& piece : open) piece.fail(*error_, deferred);
      return;
    }
    pieces_.insert(pieces_.end(), std::make_move_iterator(open.begin()), std::make_move_iterator(open.end()));
    slots = slots_;
  }
  if (bytes > policy().limits.bytes) signal(bytes, *slots, 0);
}

void Lane::let_waiter_assist(TransferState& state, const std::shared_ptr<Slot>& started) {
  if (policy().spin.count() == 0 || state.done() || state.bytes() > policy().assist_bytes) return;
  if (policy().stays && !started) return;
  state.set_poll([lane = shared_from_this(), weak = std::weak_ptr(started)](
                     const TransferState& one, auto deadline) { lane->assist(one, deadline, weak.lock()); });
}

void Lane::assist(const TransferState& state, Clock::time_point deadline,
                  const std::shared_ptr<Slot>& started) const {
  const auto slots = this->slots();
  const auto done = [&state] { return state.done(); };
  if (!policy().stays) {
    if (slots->size() <= kFew) engine::assist(*slots, policy(), done, deadline);
  } else if (std::find(slots->begin(), slots->end(), started) != slots->end()) {
    engine::assist({&started, 1}, policy(), done, deadline);
  }
}

void Lane::assist(const std::function<bool()>& through, Clock::time_point deadline,
                  const std::shared_ptr<Slot>& slot, bool all) const {
  const auto slots = this->slots();
  if (std::find(slots->begin(), slots->end(), slot) == slots->end()) return;
  if (all && slots->size() <= kFew) {
    engine::assist(*slots, policy(), through, deadline);
  } else {
    engine::assist({&slot, 1}, policy(), through, deadline);
  }
}

void Lane::wake_all() {
  const auto all = slots();
  for (const auto& slot : *all) slot->signal();
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

void Lane::remove(const Slot& slot, const Error& error, Deferred& deferred) {
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
  if (!heir) return close(error, deferred);
  heir->signal();
}

std::size_t Lane::channels() const { return slots()->size(); }

std::shared_ptr<Slot> Lane::word_slot() const {
  const auto slots = this->slots();
  const auto found =
      std::find_if(slots->begin(), slots->end(), [](const auto& slot) { return slot->carries_words(); });
  return found == slots->end() ? nullptr : *found;
}

bool Lane::has(const Slot& slot) const {
  const auto slots = this->slots();
  return std::any_of(slots->begin(), slots->end(), [&](const auto& one) { return one.get() == &slot; });
}

std::string Lane::describe() const {
  const auto slots = this->slots();
  std::map<std::string_view, std::string_view> rails;
  for (const auto& slot : *slots) rails.emplace(slot->rail(), slot->description());
  std::string text = fmt::format("{} channel{}", slots->size(), slots->size() == 1 ? "" : "s");
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

}  // namespace p2p::engine
