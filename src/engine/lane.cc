// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/lane.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "engine/worker.h"

namespace p2p::engine {

void Lane::add(std::shared_ptr<Slot> slot) {
  MutexLock lock(mutex_);
  slots_.push_back(std::move(slot));
}

void Lane::remove(const Slot& slot, const Error& error, Ended& ended) {
  bool last = false;
  std::shared_ptr<Slot> heir;
  {
    MutexLock lock(mutex_);
    std::erase_if(slots_, [&](const auto& one) { return one.get() == &slot; });
    last = slots_.empty();
    if (!last) heir = slots_.front();
  }
  if (last) return close(error, ended);
  heir->worker->signal(heir);
}

void Lane::submit(std::shared_ptr<Part> part, Ended& ended) {
  const std::uint64_t bytes = part->portion->bytes;
  std::vector<std::shared_ptr<Slot>> slots;
  {
    MutexLock lock(mutex_);
    if (error_) {
      part->submission->set_error(*error_);
      part->close_one(ended);
      return;
    }
    parts_.push_back(std::move(part));
    slots = slots_;
  }
  const std::size_t first = turn_.fetch_add(1, std::memory_order_relaxed);
  if (!slots.empty() && start_here(bytes, slots, first, ended)) return;
  const std::size_t wanted = std::min<std::size_t>(slots.size(), bytes / limits_.bytes + 1);
  for (std::size_t i = 0; i < wanted; ++i) {
    const auto& slot = slots[(first + i) % slots.size()];
    slot->worker->signal(slot);
  }
}

// True if the channels' next piece was started on this thread, as far as they had room for it.
bool Lane::start_here(std::uint64_t bytes, const std::vector<std::shared_ptr<Slot>>& slots, std::size_t first,
                      Ended& ended) {
  if (!device_copies_) {
    const auto& slot = slots[first % slots.size()];
    return bytes <= kInlineBytes && slot->worker->try_turn(*slot, ended) != Turn::kBusy;
  }
  if (bytes > kInlineDeviceBytes) return false;
  // The first channel as long as it is free: a device that is kept ready for short copies is so for one. A
  // worker that only looks is gone within a microsecond; one that starts long lists is not waited for.
  constexpr int kTries = 20;
  for (int i = 0; i < kTries; ++i) {
    for (const auto& slot : slots) {
      if (slot->worker->try_turn(*slot, ended) != Turn::kBusy) return true;
    }
  }
  return false;
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
  for (const auto& slot : slots()) slot->worker->signal(slot);
}

void Lane::close(const Error& error, Ended& ended) {
  std::deque<std::shared_ptr<Part>> parts;
  std::deque<Piece> returned;
  {
    MutexLock lock(mutex_);
    if (!error_) error_ = error;
    parts.swap(parts_);
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
  return slots_.size();
}

std::string Lane::describe() const {
  MutexLock lock(mutex_);
  std::map<std::string_view, std::string_view> rails;
  for (const auto& slot : slots_) rails.emplace(slot->rail, slot->description);
  std::string text = fmt::format("{} channel{}", slots_.size(), slots_.size() == 1 ? "" : "s");
  std::string_view separator = ": ";
  for (const auto& [rail, description] : rails) {
    text.append(std::exchange(separator, "; ")).append(description);
  }
  return text;
}

std::vector<std::shared_ptr<Slot>> Lane::slots() const {
  MutexLock lock(mutex_);
  return slots_;
}

void Lane::assist(const TransferState& state, std::chrono::steady_clock::time_point deadline) {
  // With many channels the workers are quicker than one caller that looks at all of them.
  constexpr std::size_t kFew = 4;
  auto slots = this->slots();
  if (slots.empty() || slots.size() > kFew) return;
  // Lists of the workers' length are theirs to write, side by side; short ones mostly went to the first
  // channel.
  if (device_copies_ && state.bytes() > kInlineDeviceBytes) return;
  if (device_copies_) slots.resize(1);
  std::vector<Assist> assists;
  assists.reserve(slots.size());
  for (const auto& slot : slots) {
    while (!assists.emplace_back(*slot).begun()) {
      assists.pop_back();
      if (!device_copies_ || state.done() || std::chrono::steady_clock::now() > deadline) return;
    }
  }
  Ended ended;
  auto moved_at = std::chrono::steady_clock::now();
  while (!state.done()) {
    bool moved = false;
    for (const auto& slot : slots) {
      const Turn turn = slot->worker->try_turn(*slot, ended);
      if (turn == Turn::kBusy && !device_copies_) return;
      moved = moved || turn == Turn::kMoved;
    }
    const auto now = std::chrono::steady_clock::now();
    if (moved) moved_at = now;
    if (now - moved_at > spin_ || now > deadline) return;
  }
}

}  // namespace p2p::engine
