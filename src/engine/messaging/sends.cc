// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/messaging/sends.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/underlying.h"
#include "base/wire_code.h"
#include "engine/memory/spans.h"
#include "engine/request/stripe.h"

namespace p2p::engine {
namespace {

std::uint64_t cost(std::uint64_t bytes) { return bytes + Sends::kEagerCost; }

/// The spans of a receive, with their places in it for their regions: of a long list a message may reach few.
std::vector<RemoteSpan> numbered(std::span<const wire::ReceiveSpan> spans) {
  std::vector<RemoteSpan> all;
  all.reserve(spans.size());
  for (const wire::ReceiveSpan& span : spans) {
    all.push_back({RemoteRegionId{static_cast<std::uint32_t>(all.size())}, span.address, span.size});
  }
  return all;
}

/// Puts regions in place of these numbers.
template <class Import>
Status import_reached(std::span<RemoteSpan> reached, std::span<const wire::ReceiveSpan> spans,
                      const Import& import) {
  RemoteRegionId number{};
  RemoteRegionId region{};
  for (RemoteSpan& piece : reached) {
    if (&piece == &reached.front() || piece.region != number) {
      number = piece.region;
      const Result<RemoteRegionId> found = import(spans[to_underlying(number)]);
      if (!found) return tl::unexpected(found.error());
      region = *found;
    }
    piece.region = region;
  }
  return {};
}

}  // namespace

void Sends::set_room(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  room_ = bytes;
}

// At most a quarter of the room, so that several can be under way.
bool Sends::may_be_eager(std::uint64_t bytes, std::size_t spans, bool on_host) const {
  return on_host && bytes <= kMostEagerBytes && spans <= kMostEagerSpans && cost(bytes) <= room_ / 4;
}

std::shared_ptr<TransferState> Sends::post(std::span<const LocalSpan> message) {
  bool on_host = true;
  const Status known = visit_spans("send", *context_->regions, message,
                                   [&](const LocalSpan&, const std::shared_ptr<Region>& region) {
                                     on_host = on_host && region->info().place.kind == MemoryKind::kHost;
                                   });
  if (!known) return failed_transfer(known.error());
  const std::uint64_t bytes = total(message);
  auto state = std::make_shared<TransferState>(bytes);
  Sequence sequence = 0;
  bool eager = false;
  PostUnlockActions actions;
  {
    MutexLock lock(mutex_);
    if (closed_) return failed_transfer(error_);
    sequence = next_++;
    state->set_cancel([weak = weak_from_this(), sequence] {
      if (const auto self = weak.lock()) self->cancel(sequence);
    });
    if (messages_->assists()) {
      state->set_poll([weak = weak_from_this(), sequence](const TransferState& one, auto deadline) {
        if (const auto self = weak.lock()) self->assist(sequence, one, deadline);
      });
    }
    Send send{{message.begin(), message.end()}, state};
    const auto* const posted = posted_.find(sequence);
    const bool to_device = posted != nullptr ? on_device(*posted) : posted_.last_on_device();
    eager = may_be_eager(bytes, message.size(), on_host) && !to_device &&
            !(posted != nullptr && posted->withdrawn);
    if (eager) {
      posted_.erase(sequence);
      if (queued_.empty() && has_room(bytes)) {
        send_eagerly(sequence, std::move(send), actions);
      } else {
        queued_.emplace(sequence, std::move(send));
      }
    } else {
      waiting_.emplace(sequence, std::move(send));
      if (!match(sequence, actions)) messages_->say(wire::ReceiveWanted{sequence});
    }
  }
  actions.run();
  eager ? messages_->flush_if_due() : messages_->flush();
  return state;
}

bool Sends::has_room(std::uint64_t bytes) const { return room_used_ + cost(bytes) <= room_; }

// In order, until the peer's room is used up.
void Sends::send_queued(PostUnlockActions& actions) {
  while (!queued_.empty() && has_room(queued_.begin()->second.state->bytes())) {
    auto first = queued_.extract(queued_.begin());
    send_eagerly(first.key(), std::move(first.mapped()), actions);
  }
}

// Reads the memory now. It is read again only if the peer declines, because the receive lies on a device.
void Sends::send_eagerly(Sequence sequence, Send send, PostUnlockActions& actions) {
  wire::EagerMessage message{.sequence = sequence, .error = 0, .spans = {}, .bytes = {}};
  std::vector<ByteView> parts = std::move(parts_);
  parts.clear();
  HeldRegions held;
  Status readable;
  if (send.state->done()) {
    readable = fail(ErrorCode::kCancelled, "message {}: its sender cancelled", sequence);
  } else {
    readable = visit_spans("send", *context_->regions, send.message,
                           [&](const LocalSpan& span, const std::shared_ptr<Region>& region) {
                             held.add(region);
                             parts.emplace_back(span.data, span.size);
                             if (send.message.size() > 1) {
                               message.spans.push_back(static_cast<std::uint32_t>(span.size));
                             }
                           });
  }
  if (readable) readable = messages_->say(message, parts);
  if (!readable) {
    message.spans.clear();
    message.error = wire_code(readable.error().code);
    const auto why = std::as_bytes(std::span(readable.error().message));
    if (has_room(why.size())) message.bytes.assign(why.begin(), why.end());
    actions.finish(send.state, readable);
    messages_->say(message);
  }
  parts_ = std::move(parts);
  messages_->gather();
  const std::uint64_t used = cost(readable ? send.state->bytes() : message.bytes.size());
  room_used_ += used;
  eager_.emplace(sequence, Eager{std::move(send), used});
}

Status Sends::on(wire::ReceivePosted& posted, PostUnlockActions& actions) {
  MutexLock lock(mutex_);
  auto whole = posted_.assemble(posted);
  if (!whole) return tl::unexpected(whole.error());
  if (!*whole) return {};
  const Sequence sequence = (*whole)->first;
  if (Status added = posted_.add(std::move(**whole)); !added) return added;
  if (closed_ || (sequence < next_ && !waiting_.contains(sequence) && !eager_.contains(sequence))) {
    posted_.erase(sequence);  // it went eagerly and was answered, or, after stop(), SendsEnded answers it
  } else {
    match(sequence, actions);
  }
  return {};
}

// If both the send and the receive of that number are there, takes them out and has the write started.
bool Sends::match(Sequence sequence, PostUnlockActions& actions) {
  const auto mine = waiting_.find(sequence);
  if (mine == waiting_.end()) return false;
  auto theirs = posted_.take(sequence);
  if (!theirs) return false;
  writes_.emplace(sequence, Write{mine->second.state, nullptr});
  actions.call([self = shared_from_this(), sequence, send = std::move(mine->second),
                receive = std::move(*theirs)] { self->start(sequence, send, receive); });
  waiting_.erase(mine);
  return true;
}

void Sends::start(Sequence sequence, const Send& send, const PostedReceives::Receive& receive) {
  if (receive.withdrawn) {  // the receiver has its answer already
    return finish(sequence, send.state,
                  fail(ErrorCode::kCancelled, "send message {}: its receiver cancelled", sequence), false);
  }
  if (send.state->cancelled()) {
    return finish(sequence, send.state,
                  fail(ErrorCode::kCancelled, "message {}: its sender cancelled", sequence));
  }
  auto pairing = pair_message(send.message, numbered(receive.spans));
  Status ready = pairing ? import_reached(pairing->remote, receive.spans, link_.import)
                         : tl::unexpected(pairing.error());
  if (!ready) return finish(sequence, send.state, std::move(ready));
  const auto write = link_.write(pairing->local, pairing->remote,
                                 [self = shared_from_this(), sequence, state = send.state](Status status) {
                                   self->finish(sequence, state, std::move(status));
                                 });
  {
    MutexLock lock(mutex_);
    if (const auto found = writes_.find(sequence); found != writes_.end()) found->second.write = write;
  }
  if (send.state->cancelled()) write->cancel();
}

void Sends::finish(Sequence sequence, const std::shared_ptr<TransferState>& state, Status status,
                   bool tell_peer) {
  wire::ReceiveDone done{sequence, state->bytes(), 0, ""};
  if (!status) {
    done.error = wire_code(status.error().code);
    done.message = status.error().message;
  }
  {
    MutexLock lock(mutex_);
    writes_.erase(sequence);
    if (tell_peer && (status || !cut_off_)) messages_->say(done);
    end_if_done();
  }
  messages_->flush();
  state->finish(std::move(status));
}

// On a waiting caller's thread: drives the message stream until the write has started, then the write.
void Sends::assist(Sequence sequence, const TransferState& state,
                   std::chrono::steady_clock::time_point deadline) const {
  const auto write = [&]() -> std::shared_ptr<TransferState> {
    MutexLock lock(mutex_);
    const auto found = writes_.find(sequence);
    return found == writes_.end() ? nullptr : found->second.write;
  };
  auto started = write();
  if (!started) {
    messages_->assist([&] { return state.done() || (started = write()) != nullptr; }, deadline, false);
  }
  if (started) started->poll(deadline);
}

void Sends::cancel(Sequence sequence) {
  std::shared_ptr<TransferState> unsent;
  std::shared_ptr<TransferState> write;
  {
    MutexLock lock(mutex_);
    // The entries stay, so that the receives of their numbers are answered.
    if (const auto found = waiting_.find(sequence); found != waiting_.end()) unsent = found->second.state;
    if (const auto found = queued_.find(sequence); found != queued_.end()) unsent = found->second.state;
    if (const auto found = writes_.find(sequence); found != writes_.end()) write = found->second.write;
    if (eager_.contains(sequence)) messages_->say(wire::MessageWithdrawn{sequence});
  }
  messages_->flush();
  if (write) write->cancel();
  if (unsent) {
    unsent->finish(
        fail(ErrorCode::kCancelled, "send message {}: cancelled before its receive was posted", sequence));
  }
}

void Sends::answered_up_to(Sequence sequence, PostUnlockActions& actions) {
  while (!eager_.empty() && eager_.begin()->first <= sequence) {
    const auto first = eager_.begin();
    room_used_ -= first->second.cost;
    posted_.erase(first->first);
    actions.finish(std::move(first->second.send.state));
    eager_.erase(first);
  }
}

Status Sends::on(const wire::MessageAnswered& answered, PostUnlockActions& actions) {
  MutexLock lock(mutex_);
  if (answered.sequence >= next_) {
    return fail(ErrorCode::kProtocol, "message {} answered, {} were sent", answered.sequence, next_);
  }
  if (answered.error == 0) {
    answered_up_to(answered.sequence, actions);
  } else {
    const Status failed =
        fail(code_from_wire(answered.error), "send message {}: {}", answered.sequence, answered.message);
    if (const auto eager = eager_.find(answered.sequence); eager != eager_.end()) {
      actions.finish(eager->second.send.state, failed);
      posted_.erase(answered.sequence);
      // A withdrawn one still takes kEagerCost of the peer's room, until the peer has posted its receive.
      const bool withdrawn = eager->second.send.state->cancelled();
      room_used_ -= eager->second.cost - (withdrawn ? kEagerCost : 0);
      eager->second.cost = kEagerCost;
      if (!withdrawn) eager_.erase(eager);
    } else if (const auto other = waiting_.find(answered.sequence); other != waiting_.end()) {
      actions.finish(std::move(other->second.state), failed);
      waiting_.erase(other);
    }
  }
  send_queued(actions);
  return {};
}

Status Sends::on(const wire::MessageDeclined& declined, PostUnlockActions& actions) {
  MutexLock lock(mutex_);
  const auto found = eager_.find(declined.sequence);
  if (found == eager_.end()) {
    return fail(ErrorCode::kProtocol, "message {} declined, which is not under way", declined.sequence);
  }
  Send send = std::move(found->second.send);
  room_used_ -= found->second.cost;
  eager_.erase(found);
  if (closed_) {
    posted_.erase(declined.sequence);
    actions.finish(std::move(send.state), tl::unexpected(error_));
  } else {
    waiting_.emplace(declined.sequence, std::move(send));
    // A receiver that withdrew the receive meanwhile still waits for its end.
    const auto* const posted = posted_.find(declined.sequence);
    if (posted != nullptr && posted->withdrawn) confirm_withdrawal(declined.sequence);
    match(declined.sequence, actions);
  }
  send_queued(actions);
  return {};
}

void Sends::confirm_withdrawal(Sequence sequence) {
  messages_->say(
      wire::ReceiveDone{sequence, 0, wire_code(ErrorCode::kCancelled), "cancelled by the receiver"});
}

Status Sends::on(const wire::ReceiveWithdrawn& withdrawn, PostUnlockActions& actions) {
  MutexLock lock(mutex_);
  if (posted_.withdraw(withdrawn.sequence)) {
    // Its number stays: the send with that fails, and tells the peer nothing.
    if (!eager_.contains(withdrawn.sequence)) confirm_withdrawal(withdrawn.sequence);
  } else if (const auto found = writes_.find(withdrawn.sequence); found != writes_.end()) {
    actions.call([send = found->second.send] { send->cancel(); });
  }
  return {};
}

std::size_t Sends::open() const {
  MutexLock lock(mutex_);
  return static_cast<std::size_t>(
      std::ranges::count_if(eager_, [](const auto& eager) { return !eager.second.send.state->done(); }));
}

void Sends::end_if_done() {
  if (!closed_ || cut_off_ || !writes_.empty() || std::exchange(end_said_, true)) return;
  messages_->say(wire::SendsEnded{error_.message});
}

void Sends::stop(const Error& error) {
  std::map<Sequence, Send> unsent;
  {
    MutexLock lock(mutex_);
    if (!closed_) error_ = error;
    closed_ = true;
    unsent.swap(waiting_);
    unsent.merge(queued_);
    posted_.clear();
    end_if_done();
  }
  messages_->flush();
  for (const auto& [sequence, send] : unsent) send.state->finish(tl::unexpected(error));
}

void Sends::cut_off() {
  MutexLock lock(mutex_);
  cut_off_ = true;
}

void Sends::close(const Error& error) {
  stop(error);
  std::map<Sequence, Eager> eager;
  {
    MutexLock lock(mutex_);
    eager.swap(eager_);
  }
  for (const auto& [sequence, one] : eager) one.send.state->finish(tl::unexpected(error));
}

}  // namespace p2p::engine
