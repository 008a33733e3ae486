// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/messaging/receives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/guarded_copy.h"
#include "base/peer_text.h"
#include "base/safe_copy.h"
#include "base/underlying.h"
#include "base/wire_code.h"
#include "engine/memory/spans.h"
#include "engine/messaging/sends.h"
#include "engine/request/stripe.h"

namespace p2p::engine {
namespace {

// Spans in one ReceivePosted: far below the longest frame of the message stream.
constexpr std::size_t kSpansPerMessage = 512;

Status land(std::byte* to, ByteView bytes) {
  if (bytes.empty() || guarded_copy(to, bytes.data(), bytes.size())) return {};
  return tl::unexpected(bad_memory("write to", to, bytes.size()));
}

std::uint64_t cost(const wire::EagerMessage& message) { return message.bytes.size() + Sends::kEagerCost; }

}  // namespace

std::shared_ptr<TransferState> Receives::post(std::span<const LocalSpan> into) {
  auto described = describe(into);
  if (!described) return failed_transfer(described.error());
  auto state = std::make_shared<TransferState>(0);
  described->state = state;
  if (messages_->assists()) {
    // A long message is written and may come by any channel; a short one comes by the stream's own.
    const bool all = described->room > Sends::kMostEagerBytes;
    state->set_poll([messages = std::weak_ptr(messages_), all](const TransferState& one, auto deadline) {
      if (const auto self = messages.lock()) self->assist([&] { return one.done(); }, deadline, all);
    });
  }
  PostUnlockActions actions;
  {
    MutexLock lock(mutex_);
    if (stopped_ || ended_) return failed_transfer(error_);
    const Sequence sequence = next_++;
    state->set_cancel([weak = weak_from_this(), sequence] {
      if (const auto self = weak.lock()) self->cancel(sequence);
    });
    Receive& receive = open_.emplace(sequence, std::move(*described)).first->second;
    bool delivered = false;
    if (const auto came = arrived_.find(sequence); came != arrived_.end()) {
      const wire::EagerMessage message = std::move(came->second);
      free_room(cost(message));
      arrived_.erase(came);
      delivered = deliver(sequence, receive, message, actions);
      messages_->gather();
    } else if (receive.room > Sends::kMostEagerBytes || receive.on_device || sequence < wanted_) {
      announce(sequence, receive);
    }
    if (delivered) open_.erase(sequence);
  }
  actions.run();
  messages_->flush_if_due();
  return state;
}

Result<Receives::Receive> Receives::describe(std::span<const LocalSpan> into) const {
  Receive receive{.into = {into.begin(), into.end()}};
  Status writable;
  receive.spans.reserve(into.size());
  const Status known = visit_spans(
      "recv", *context_->regions, into, [&](const LocalSpan& span, const std::shared_ptr<Region>& region) {
        const RegionInfo& info = region->info();
        if (info.read_only()) {
          writable = fail(ErrorCode::kPermissionDenied,
                          "recv: region {} is registered read-only, and the sender writes into it",
                          to_underlying(span.region));
        }
        if (Status in_time = info.check_unexpired(); !in_time) writable = in_time;
        receive.spans.push_back({to_underlying(span.region), info.key,
                                 static_cast<std::uint8_t>(info.place.kind), info.place.device,
                                 reinterpret_cast<std::uintptr_t>(span.data), span.size});
        receive.room += span.size;
        receive.on_device = receive.on_device || info.place.kind != MemoryKind::kHost;
      });
  if (!known) return tl::unexpected(known.error());
  if (!writable) return tl::unexpected(writable.error());
  return receive;
}

void Receives::announce(Sequence sequence, Receive& receive) {
  receive.announced = true;
  const std::vector<wire::ReceiveSpan> spans = std::exchange(receive.spans, {});
  std::size_t next = 0;
  do {
    const std::size_t count = std::min(kSpansPerMessage, spans.size() - next);
    const auto first = spans.begin() + static_cast<std::ptrdiff_t>(next);
    next += count;
    messages_->say(wire::ReceivePosted{
        sequence, next < spans.size(), {first, first + static_cast<std::ptrdiff_t>(count)}});
  } while (next < spans.size());
}

Status Receives::on(wire::EagerMessage& message, PostUnlockActions& actions) {
  std::uint64_t bytes = 0;
  for (const std::uint32_t size : message.spans) bytes += size;
  MutexLock lock(mutex_);
  const Sequence sequence = message.sequence;
  if (sequence < next_eager_ || (!message.spans.empty() && bytes != message.bytes.size()) ||
      message.bytes.size() > Sends::kMostEagerBytes || message.spans.size() > Sends::kMostEagerSpans) {
    return fail(ErrorCode::kProtocol,
                "message {} of {} bytes in {} spans ({} bytes); the next is {} or a later one", sequence,
                message.bytes.size(), message.spans.size(), bytes, next_eager_);
  }
  next_eager_ = sequence + 1;
  if (const auto found = open_.find(sequence); found != open_.end()) {
    if (deliver(sequence, found->second, message, actions)) open_.erase(found);
  } else if (sequence < next_) {
    answer(sequence, fail(ErrorCode::kCancelled, "its receiver cancelled"));
  } else if (stopped_) {
    answer(sequence, fail(ErrorCode::kPeerGone, "{}", error_.message));
  } else if (kept_.bytes() + cost(message) > room_) {
    return fail(ErrorCode::kProtocol, "message {} of {} bytes is more than there is room for", sequence,
                message.bytes.size());
  } else {
    if (Status kept = kept_.set(kept_.bytes() + cost(message)); !kept) return kept;
    arrived_.emplace(sequence, std::move(message));
  }
  return {};
}

// True if the receive has ended with that.
bool Receives::deliver(Sequence sequence, Receive& receive, const wire::EagerMessage& message,
                       PostUnlockActions& actions) {
  if (message.error != 0) {
    answer(sequence, {});
    const PeerText why{ByteView(message.bytes)};
    actions.finish(std::move(receive.state),
                   fail(code_from_wire(message.error), "recv message {}: given up by its sender{}{}",
                        sequence, why.empty() ? "" : ": ", why));
    return true;
  }
  if (receive.on_device) {
    if (!receive.announced) announce(sequence, receive);
    messages_->say(wire::MessageDeclined{sequence});
    return false;
  }
  Status copied = copy(receive, message);
  answer(sequence, copied);
  if (copied) {
    ++received_;
    receive.state->set_bytes(message.bytes.size());
  } else {
    copied = fail(copied.error().code, "recv message {}: {}", sequence, copied.error().message);
  }
  actions.finish(std::move(receive.state), std::move(copied));
  return true;
}

// Does not flush: the answers to all messages of a block leave together, when the block has been handled.
void Receives::answer(Sequence sequence, const Status& status) {
  wire::MessageAnswered answered{sequence, 0, ""};
  if (!status) {
    answered.error = wire_code(status.error().code);
    answered.message = status.error().message;
  }
  messages_->say(answered);
}

Status Receives::copy(const Receive& receive, const wire::EagerMessage& message) const {
  if (receive.into.size() == 1 && message.spans.empty() && message.bytes.size() <= receive.room) {
    Status copied;
    const Status there = visit_spans("recv", *context_->regions, receive.into,
                                     [&](const LocalSpan& span, const std::shared_ptr<Region>& region) {
                                       HeldRegions held;
                                       held.add(region);
                                       copied = land(span.data, message.bytes);
                                     });
    return there ? copied : there;
  }
  // Paired by the same rules as a message that is written, with the receive's memory as the remote side.
  std::vector<LocalSpan> parts;
  std::byte* at = const_cast<std::byte*>(message.bytes.data());
  for (const std::uint32_t size : message.spans) {
    parts.push_back({RegionId{}, at, size});
    at += size;
  }
  if (message.spans.empty() && !message.bytes.empty())
    parts.push_back({RegionId{}, at, message.bytes.size()});
  std::vector<RemoteSpan> into;
  into.reserve(receive.into.size());
  HeldRegions held;
  const Status there = visit_spans(
      "recv", *context_->regions, receive.into,
      [&](const LocalSpan& span, const std::shared_ptr<Region>& region) {
        if (!held.find(span.region)) held.add(region);
        into.push_back({RemoteRegionId{}, reinterpret_cast<std::uintptr_t>(span.data), span.size});
      });
  if (!there) return there;
  const auto pairing = pair_message(parts, into);
  if (!pairing) return tl::unexpected(pairing.error());
  for (std::size_t i = 0; i != pairing->local.size(); ++i) {
    const LocalSpan& from = pairing->local[i];
    // NOLINTNEXTLINE(performance-no-int-to-ptr): made from a pointer of this process above
    auto* const to = reinterpret_cast<std::byte*>(pairing->remote[i].address);
    if (Status copied = land(to, {from.data, from.size}); !copied) return copied;
  }
  return {};
}

Status Receives::on(const wire::MessageWithdrawn& withdrawn) {
  MutexLock lock(mutex_);
  const auto came = arrived_.find(withdrawn.sequence);
  if (came == arrived_.end()) return {};  // it has met its receive already
  // The entry stays, without its bytes, and fails the receive with its number.
  wire::EagerMessage& message = came->second;
  if (message.error != 0) return {};
  free_room(message.bytes.size());
  message.bytes.clear();
  message.error = wire_code(ErrorCode::kCancelled);
  answer(withdrawn.sequence, fail(ErrorCode::kCancelled, "cancelled before its receive was posted"));
  return {};
}

Status Receives::on(const wire::ReceiveDone& done, PostUnlockActions& actions) {
  MutexLock lock(mutex_);
  const auto found = open_.find(done.sequence);
  if (found == open_.end() || !found->second.announced) {
    return fail(ErrorCode::kProtocol, "receive {} done that was not posted", done.sequence);
  }
  if (done.error == 0 && done.bytes > found->second.room) {
    return fail(ErrorCode::kProtocol, "receive {} of {} bytes done with {}", done.sequence,
                found->second.room, done.bytes);
  }
  auto state = std::move(found->second.state);
  open_.erase(found);
  if (done.error == 0) {
    ++received_;
    state->set_bytes(done.bytes);
    actions.finish(std::move(state));
  } else {
    actions.finish(std::move(state),
                   fail(code_from_wire(done.error), "recv message {}: {}", done.sequence, done.message));
  }
  return {};
}

Status Receives::on(const wire::ReceiveWanted& wanted) {
  MutexLock lock(mutex_);
  wanted_ = std::max(wanted_, wanted.sequence + 1);
  if (const auto found = open_.find(wanted.sequence); found != open_.end()) {
    if (!found->second.announced) announce(wanted.sequence, found->second);
  } else if (wanted.sequence < next_) {
    answer(wanted.sequence, fail(ErrorCode::kCancelled, "its receiver cancelled"));
  }
  return {};
}

void Receives::on(const wire::SendsEnded& ended, PostUnlockActions& actions) {
  MutexLock lock(mutex_);
  if (std::exchange(ended_, true)) return;
  if (!stopped_) error_ = {ErrorCode::kPeerGone, "the peer sends nothing more: " + ended.reason.text()};
  for (auto& [sequence, receive] : std::exchange(open_, {})) {
    actions.finish(
        std::move(receive.state),
        fail(ErrorCode::kPeerGone, "recv message {}: the sender ended: {}", sequence, ended.reason));
  }
}

// A receive that was announced is ended by the peer. Any other ends here, and the message with its number is
// refused when it comes.
void Receives::cancel(Sequence sequence) {
  std::shared_ptr<TransferState> unannounced;
  {
    MutexLock lock(mutex_);
    const auto found = open_.find(sequence);
    if (found == open_.end()) return;
    if (found->second.announced) {
      messages_->say(wire::ReceiveWithdrawn{sequence});
    } else {
      unannounced = std::move(found->second.state);
      open_.erase(found);
    }
  }
  messages_->flush();
  if (unannounced) unannounced->finish(fail(ErrorCode::kCancelled, "recv message {}: cancelled", sequence));
}

std::uint64_t Receives::received() const {
  MutexLock lock(mutex_);
  return received_;
}

std::size_t Receives::open() const {
  MutexLock lock(mutex_);
  return open_.size();
}

void Receives::stop(const Error& error) {
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    error_ = error;
    for (const auto& [sequence, message] : std::exchange(arrived_, {})) {
      answer(sequence, fail(ErrorCode::kPeerGone, "{}", error.message));
    }
    free_room(kept_.bytes());
  }
  messages_->flush();
}

void Receives::close(const Error& error) {
  stop(error);
  std::map<Sequence, Receive> open;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    open.swap(open_);
  }
  for (const auto& [sequence, receive] : open) receive.state->finish(tl::unexpected(error));
}

}  // namespace p2p::engine
