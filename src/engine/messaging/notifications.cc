// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/messaging/notifications.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace p2p::engine {
namespace {

// Small enough that other messages get their turn between two items.
constexpr std::size_t kPieceBytes = std::size_t{16} << 10;

// The peer is told of what was taken once that is such a part of what is kept at most: what it was not told
// of and the longest notification have room together.
constexpr std::uint64_t kTellPart = 4;

}  // namespace

bool Notifications::fits(std::uint64_t bytes) const {
  return room_known_ && said_.count - taken_.count < peer_room_.count &&
         bytes <= peer_room_.bytes - std::min(peer_room_.bytes, said_.bytes - taken_.bytes);
}

Status Notifications::refuse(std::uint64_t bytes) const {
  return fail(ErrorCode::kMessageTooLong, "notify with {} bytes: at most {} for this peer", bytes,
              peer_room_.bytes / 2);
}

void Notifications::set_peer_room(Amount room) {
  PostUnlockActions actions;
  {
    MutexLock lock(mutex_);
    peer_room_ = room;
    room_known_ = true;
    say_waiting(actions);
  }
  actions.run();
  messages_->flush();
}

void Notifications::send(std::string_view payload, std::shared_ptr<TransferState> state) {
  Status refused;
  {
    // Held over the items: those of two notifications must not mix.
    MutexLock lock(mutex_);
    if (closed_) {
      refused = tl::unexpected(error_);
    } else if (too_long(payload.size())) {
      refused = refuse(payload.size());
    } else if (!waiting_.empty() || !fits(payload.size())) {
      waiting_.push_back({std::string(payload), std::move(state)});
      ++delayed_;
      return;
    } else {
      say(payload, state);
      messages_->gather();
    }
  }
  if (!refused) return state->finish(std::move(refused));
  if (messages_->assists()) {
    state->set_poll([messages = std::weak_ptr(messages_)](const TransferState& one, auto deadline) {
      if (const auto self = messages.lock()) self->assist([&] { return one.done(); }, deadline, false);
    });
  }
  messages_->flush_if_due();
}

void Notifications::say(std::string_view payload, std::shared_ptr<TransferState> state) {
  const std::uint64_t id = said_.count++;
  said_.bytes += payload.size();
  open_.emplace(id, std::move(state));
  std::size_t offset = 0;
  do {
    const ByteView item = as_bytes(payload.substr(offset, kPieceBytes));
    messages_->say(wire::Notify{id, payload.size(), offset, {}}, std::span(&item, 1));
    offset += item.size();
  } while (offset < payload.size());
}

void Notifications::say_waiting(PostUnlockActions& actions) {
  while (!waiting_.empty()) {
    Waiting& next = waiting_.front();
    if (too_long(next.payload.size())) {
      actions.finish(std::move(next.state), refuse(next.payload.size()));
    } else if (fits(next.payload.size())) {
      say(next.payload, std::move(next.state));
    } else {
      return;
    }
    waiting_.pop_front();
  }
}

std::vector<std::string> Notifications::take() {
  std::vector<std::string> taken;
  bool tell = false;
  {
    MutexLock lock(mutex_);
    taken.swap(came_);
    const std::uint64_t count = received_.count - told_.count;
    tell = count != 0 &&
           (count >= room_.count / kTellPart || received_.bytes - told_.bytes >= room_.bytes / kTellPart);
    if (tell) {
      told_ = received_;
      messages_->say(wire::NotifyTaken{told_.count, told_.bytes});
    }
  }
  if (tell) messages_->flush();
  return taken;
}

Status Notifications::on(const wire::Notify& item) {
  MutexLock lock(mutex_);
  if (item.offset != coming_.size() || item.offset > item.total ||
      item.part.size() > item.total - item.offset || (item.part.empty() && item.total != 0)) {
    return fail(ErrorCode::kProtocol, "a notification's piece of {} bytes at {} of {}", item.part.size(),
                item.offset, item.total);
  }
  const std::uint64_t kept = received_.bytes - told_.bytes;
  if (received_.count - told_.count >= room_.count ||
      item.total > room_.bytes - std::min(room_.bytes, kept)) {
    return fail(ErrorCode::kProtocol, "a notification of {} bytes while {} with {} bytes are not taken",
                item.total, received_.count - told_.count, kept);
  }
  coming_.append(reinterpret_cast<const char*>(item.part.data()), item.part.size());
  if (coming_.size() < item.total) return {};
  received_.bytes += coming_.size();
  ++received_.count;
  came_.push_back(std::exchange(coming_, {}));
  messages_->say(wire::NotifyDone{item.notification});
  return {};
}

void Notifications::on(const wire::NotifyDone& done, PostUnlockActions& actions) {
  MutexLock lock(mutex_);
  while (!open_.empty() && open_.begin()->first <= done.notification) {
    actions.finish(std::move(open_.begin()->second));
    open_.erase(open_.begin());
  }
}

Status Notifications::on(const wire::NotifyTaken& taken, PostUnlockActions& actions) {
  MutexLock lock(mutex_);
  if (taken.count > said_.count || taken.count < taken_.count || taken.bytes > said_.bytes ||
      taken.bytes < taken_.bytes) {
    return fail(ErrorCode::kProtocol, "{} notifications with {} bytes taken: {} with {} were sent",
                taken.count, taken.bytes, said_.count, said_.bytes);
  }
  taken_ = {taken.count, taken.bytes};
  say_waiting(actions);
  return {};
}

std::uint64_t Notifications::sent() const {
  MutexLock lock(mutex_);
  return said_.count + waiting_.size();
}

std::uint64_t Notifications::received() const {
  MutexLock lock(mutex_);
  return received_.count;
}

std::uint64_t Notifications::delayed() const {
  MutexLock lock(mutex_);
  return delayed_;
}

std::size_t Notifications::open() const {
  MutexLock lock(mutex_);
  return open_.size() + waiting_.size();
}

void Notifications::stop(const Error& error) {
  std::deque<Waiting> waiting;
  {
    MutexLock lock(mutex_);
    waiting.swap(waiting_);
  }
  for (const Waiting& one : waiting) one.state->finish(tl::unexpected(error));
}

void Notifications::close(const Error& error) {
  std::map<std::uint64_t, std::shared_ptr<TransferState>> open;
  std::deque<Waiting> waiting;
  {
    // Both at once: a message of the peer's that is handled just now may move one from here to there.
    MutexLock lock(mutex_);
    closed_ = true;
    error_ = error;
    open.swap(open_);
    waiting.swap(waiting_);
  }
  for (const auto& [id, state] : open) state->finish(tl::unexpected(error));
  for (const Waiting& one : waiting) one.state->finish(tl::unexpected(error));
}

}  // namespace p2p::engine
