// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/lane.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace p2p::engine {

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
  note_bulk(bytes, deferred);
  const bool worth_starting = policy().worth_starting(piece.batch);
  Slots slots;
  {
    MutexLock lock(mutex_);
    if (refusal_) {
      piece.refuse(*refusal_, deferred);
      return nullptr;
    }
    pieces_.push_back(std::move(piece));
    slots = slots_;
  }
  if (slots.empty()) return want_channels(deferred), nullptr;
  // While nothing else is under way the same channels serve again: their threads, and the peer's, are more
  // likely to be awake.
  const std::size_t turn = slots.unladen() ? 0 : turn_.fetch_add(1, std::memory_order_relaxed);
  if (worth_starting) {
    if (auto slot = start_here(slots, turn, deferred)) return slot;
  }
  slots.signal(policy().channels_worth(bytes, slots.size()), turn);
  return nullptr;
}

void Lane::note_bulk(std::uint64_t bytes, Deferred& deferred) {
  if (bytes < kBulkBytes || !watched_.load(std::memory_order_relaxed)) return;
  if (watched_.exchange(false) && bulk_) deferred.call(bulk_);
}

// The first channel's worker looks at the gate, and so does a caller who drives that channel.
std::shared_ptr<Slot> Lane::submit_gated(Piece piece, Deferred& deferred) {
  const bool worth_starting = policy().worth_starting(piece.batch);
  note_bulk(piece.batch.bytes, deferred);
  gated_.add(std::move(piece), deferred);
  const Slots slots = this->slots();
  if (slots.empty()) return want_channels(deferred), nullptr;
  slots.first()->signal();
  return worth_starting ? slots.first() : nullptr;
}

// The channel that had a turn on this thread, in which it took what there was as far as it had room for it.
std::shared_ptr<Slot> Lane::start_here(const Slots& slots, std::size_t turn, Deferred& deferred) const {
  const std::size_t tried = policy().takes_turns ? 1 : slots.size();
  for (std::size_t i = 0; i != tried; ++i) {
    const auto& slot = slots.at(policy().takes_turns ? turn : i);
    if (slot->await_turn(deferred) != Turn::kBusy) return slot;
  }
  return nullptr;
}

// So many bytes the next piece would have.
std::uint64_t Lane::next_bytes(const Slot& slot) const {
  if (!returned_.empty()) return returned_.front().batch.bytes;
  return std::min(pieces_.front().batch.bytes, most_bytes(slot));
}

// Of many streams each has a small share of a long path, and some a very small one: whoever waits for the
// transfer waits for the piece that such a one has.
std::uint64_t Lane::most_bytes(const Slot& slot) const {
  const std::uint64_t most = policy().limits.bytes;
  if (!small_.load(std::memory_order_relaxed)) return most;
  return std::min(most, piece_for(slot.pace().rate()));
}

// Of many short pieces it says so without a look at all.
bool Lane::has_waiting(std::uint64_t bytes) const {
  constexpr std::size_t kMany = 256;
  if (pieces_.size() + returned_.size() > kMany) return true;
  std::uint64_t sum = 0;
  for (const Piece& piece : returned_) sum += piece.batch.bytes;
  for (const Piece& piece : pieces_) sum += piece.batch.bytes;
  return sum >= bytes;
}

// The other one looks by itself when something of it ends, and is woken if it has nothing under way.
bool Lane::leaves_to_another(const Slot& slot, Deferred& deferred) {
  const bool alike = !slots_.of_several_rails() && !small_.load(std::memory_order_relaxed);
  if (alike || (pieces_.empty() && returned_.empty())) return false;
  const auto now = Clock::now();
  Asking asking{.batch = next_bytes(slot)};
  standings_.clear();
  for (const auto& one : slots_) {
    if (one.get() == &slot) asking.channel = standings_.size();
    standings_.push_back(one->pace().standing(now));
  }
  const Least least = least_queued(standings_, asking);
  if (has_waiting(least.queued)) return false;
  const auto& best = slots_.at(least.best);
  if (!best->pace().laden()) deferred.call([best] { best->signal(); });
  return true;
}

std::optional<Piece> Lane::take(const Slot& slot, Deferred& deferred) {
  MutexLock lock(mutex_);
  if (slots_.empty()) return std::nullopt;  // at rest: whoever asks is on its way out
  if (leaves_to_another(slot, deferred)) return std::nullopt;
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
    BatchLimits limits = policy().limits;
    limits.bytes = most_bytes(slot);
    if (pieces_.empty()) {
      limits.bytes = std::min(limits.bytes, policy().share(rest.batch.bytes, slots_.size()));
    }
    Piece piece = rest.cut(limits);
    if (!rest.empty()) pieces_.push_back(std::move(rest));
    return piece;
  }
  return std::nullopt;
}

// Who was woken for this work counted on the slot to take more of it. One that has nothing under way itself
// waits for something that they share.
void Lane::give_back(const Slot& slot, Piece piece, Deferred& deferred) {
  return_piece(std::move(piece), deferred);
  if (!slot.pace().laden()) return;
  auto idle = slots().idle();
  if (idle) deferred.call([idle = std::move(idle)] { idle->signal(); });
}

void Lane::retry(Piece piece, const Error& why, Deferred& deferred) {
  retried_.fetch_add(1, std::memory_order_relaxed);
  if (!piece.note_loss(Clock::now(), policy().patience)) return piece.divert(why, deferred);
  return_piece(std::move(piece), deferred);
}

void Lane::return_piece(Piece piece, Deferred& deferred) {
  {
    MutexLock lock(mutex_);
    if (refusal_) return piece.refuse(*refusal_, deferred);
    returned_.push_back(std::move(piece));
    if (!slots_.empty()) return;
  }
  want_channels(deferred);
}

bool Lane::awaits_gates(const Slot& slot) const {
  if (gated_.empty()) return false;
  MutexLock lock(mutex_);
  return !slots_.empty() && slots_.first().get() == &slot;
}

void Lane::look_at_gates(const Slot& slot, Deferred& deferred) {
  if (!awaits_gates(slot)) return;
  std::deque<Piece> open = gated_.look(deferred);
  std::uint64_t bytes = 0;
  for (const Piece& piece : open) bytes += piece.batch.bytes;
  Slots slots;
  {
    MutexLock lock(mutex_);
    if (refusal_) {
      for (Piece& piece : open) piece.refuse(*refusal_, deferred);
      return;
    }
    pieces_.insert(pieces_.end(), std::make_move_iterator(open.begin()), std::make_move_iterator(open.end()));
    slots = slots_;
  }
  slots.signal(policy().channels_worth(bytes, slots.size()) - 1, 1);  // besides this one
}

void Lane::let_waiter_assist(TransferState& state, const std::shared_ptr<Slot>& started) {
  if (policy().spin.count() == 0 || state.done() || state.bytes() > policy().assist_bytes) return;
  if (policy().stays && !started) return;
  // He stays at the channel on which it was started, or moves whichever there is.
  state.set_poll(
      [lane = shared_from_this(), weak = std::weak_ptr(started)](const TransferState& one, auto deadline) {
        lane->assist([&one] { return one.done(); }, deadline, weak.lock(), !lane->policy().stays);
      });
}

void Lane::assist(const std::function<bool()>& through, Clock::time_point deadline,
                  const std::shared_ptr<Slot>& slot, bool all) const {
  slots().assist(slot, all, policy(), through, deadline);
}

}  // namespace p2p::engine
