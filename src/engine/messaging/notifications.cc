// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/messaging/notifications.h"

#include <algorithm>
#include <utility>

#include "base/callback.h"
#include "base/error.h"
#include "base/guarded_copy.h"
#include "base/safe_copy.h"

namespace p2p::engine {
namespace {

// A notification travels in parts of at most so many bytes, so that other messages get their turn between
// two.
constexpr std::size_t kPartBytes = std::size_t{16} << 10;

// The peer gets credit back once the application has taken a quarter of the window. A notification has at
// most half of it, so the longest one always fits beside the credit that is not given back yet.
constexpr std::uint64_t kCreditShare = 4;

// For what stays here, or travels in several parts, of which none may be missing: the program's memory may be
// bad.
Result<std::string> own_copy(std::string_view payload) {
  std::string copy(payload.size(), '\0');
  if (payload.empty() || guarded_copy(copy.data(), payload.data(), payload.size())) return copy;
  return tl::unexpected(bad_memory("send", payload.data(), payload.size()));
}

}  // namespace

bool Notifications::fits(std::uint64_t bytes) const {
  return room_known_ && sent_.count - taken_.count < peer_room_.count &&
         bytes <= peer_room_.bytes - std::min(peer_room_.bytes, sent_.bytes - taken_.bytes);
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
    send_waiting(actions);
  }
  actions.run();
  messages_->flush();
}

void Notifications::send(std::string_view payload, std::shared_ptr<TransferState> state) {
  Status refused;
  {
    // Held for all parts: those of two notifications must not mix.
    MutexLock lock(mutex_);
    if (closed_) {
      refused = tl::unexpected(error_);
    } else if (too_long(payload.size())) {
      refused = refuse(payload.size());
    } else {
      const bool waits = !waiting_.empty() || !fits(payload.size());
      Result<std::string> copy;
      if (waits || payload.size() > kPartBytes) copy = own_copy(payload);
      if (!copy) {
        refused = tl::unexpected(std::move(copy.error()));
      } else if (waits) {
        waiting_.push_back({std::move(*copy), std::move(state)});
        ++delayed_;
        return;
      } else {
        refused = send_now(copy->empty() ? payload : std::string_view(*copy), state);
        messages_->gather();
      }
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

// Fails for a notification of one part alone, of bad memory: longer ones are of this object's.
Status Notifications::send_now(std::string_view payload, std::shared_ptr<TransferState> state) {
  const std::uint64_t id = sent_.count;
  std::size_t offset = 0;
  do {
    const ByteView part = as_bytes(payload.substr(offset, kPartBytes));
    Status said = messages_->say(wire::Notify{id, payload.size(), offset, {}}, std::span(&part, 1));
    if (!said) return said;
    offset += part.size();
  } while (offset < payload.size());
  ++sent_.count;
  sent_.bytes += payload.size();
  open_.emplace(id, std::move(state));
  return {};
}

void Notifications::send_waiting(PostUnlockActions& actions) {
  while (!waiting_.empty()) {
    Waiting& next = waiting_.front();
    if (too_long(next.payload.size())) {
      actions.finish(std::move(next.state), refuse(next.payload.size()));
    } else if (fits(next.payload.size())) {
      static_cast<void>(send_now(next.payload, std::move(next.state)));  // from memory of this object
    } else {
      return;
    }
    waiting_.pop_front();
  }
}

std::vector<std::string> Notifications::take() {
  std::vector<std::string> taken;
  bool give_credit = false;
  {
    MutexLock lock(mutex_);
    taken.swap(came_);
    static_cast<void>(kept_.set(coming_.size()));  // less than before
    const std::uint64_t count = received_.count - credited_.count;
    give_credit = count != 0 && (count >= room_.count / kCreditShare ||
                                 received_.bytes - credited_.bytes >= room_.bytes / kCreditShare);
    if (give_credit) {
      credited_ = received_;
      messages_->say(wire::NotifyTaken{credited_.count, credited_.bytes});
    }
  }
  if (give_credit) messages_->flush();
  return taken;
}

void Notifications::on_arrival(std::function<void()> callback) {
  MutexLock lock(mutex_);
  watchers_.push_back(std::move(callback));
}

Status Notifications::on(const wire::Notify& notify, PostUnlockActions& actions) {
  MutexLock lock(mutex_);
  if (notify.offset != coming_.size() || notify.offset > notify.total ||
      notify.part.size() > notify.total - notify.offset || (notify.part.empty() && notify.total != 0)) {
    return fail(ErrorCode::kProtocol, "part of a notification: {} bytes at {} of {}", notify.part.size(),
                notify.offset, notify.total);
  }
  const std::uint64_t kept = received_.bytes - credited_.bytes;
  if (received_.count - credited_.count >= room_.count ||
      notify.total > room_.bytes - std::min(room_.bytes, kept)) {
    return fail(ErrorCode::kProtocol,
                "a notification of {} bytes beyond the window: {} with {} bytes are not taken yet",
                notify.total, received_.count - credited_.count, kept);
  }
  const std::uint64_t more = notify.part.size() + (notify.offset == 0 ? sizeof(std::string) : 0);
  if (Status room = kept_.set(kept_.bytes() + more); !room) return room;
  coming_.append(reinterpret_cast<const char*>(notify.part.data()), notify.part.size());
  if (coming_.size() < notify.total) return {};
  received_.bytes += coming_.size();
  ++received_.count;
  came_.push_back(std::exchange(coming_, {}));
  messages_->say(wire::NotifyDone{notify.notification});
  for (const auto& watcher : watchers_) actions.call([watcher] { run_callback(watcher); });
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
  if (taken.count > sent_.count || taken.count < taken_.count || taken.bytes > sent_.bytes ||
      taken.bytes < taken_.bytes) {
    return fail(ErrorCode::kProtocol, "{} notifications with {} bytes taken: {} with {} were sent",
                taken.count, taken.bytes, sent_.count, sent_.bytes);
  }
  taken_ = {taken.count, taken.bytes};
  send_waiting(actions);
  return {};
}

std::uint64_t Notifications::sent() const {
  MutexLock lock(mutex_);
  return sent_.count + waiting_.size();
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
    // Both under one lock: a message that is handled meanwhile may move one from waiting_ to open_.
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
