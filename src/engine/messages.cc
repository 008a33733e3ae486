// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/messages.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/underlying.h"
#include "base/wire_code.h"
#include "engine/stripe.h"

namespace p2p::engine {
namespace {

// Spans in one ReceivePosted: well below the largest frame.
constexpr std::size_t kSpansAMessage = 8192;

// A peer that posts more receives than this ahead of the sends is broken, or wants our memory.
constexpr std::size_t kMaxPosted = std::size_t{1} << 20;
constexpr std::size_t kMaxPostedSpans = std::size_t{1} << 22;
constexpr std::uint64_t kMaxSpanBytes = std::uint64_t{1} << 40;

std::uint64_t total(std::span<const LocalSpan> spans) {
  std::uint64_t bytes = 0;
  for (const LocalSpan& span : spans) bytes += span.size;
  return bytes;
}

/// Visits each span with its region; at the first that lies in none says which.
template <class Visitor>
Status visit_spans(std::string_view verb, const RegionTable& regions, std::span<const LocalSpan> spans,
                   Visitor&& visit) {
  std::shared_ptr<Region> region;
  for (const LocalSpan& span : spans) {
    if (!region || region->info().id != span.region) region = regions.find(span.region);
    if (!region)
      return fail(ErrorCode::kNotFound, "{}: no local region {}", verb, to_underlying(span.region));
    const RegionInfo& info = region->info();
    if (!info.contains(reinterpret_cast<std::uintptr_t>(span.data), span.size)) {
      return fail(ErrorCode::kOutOfRange, "{} {} bytes at {}: region {} is [{}, +{})", verb, span.size,
                  fmt::ptr(span.data), to_underlying(span.region), fmt::ptr(info.base), info.size);
    }
    visit(span, info);
  }
  return {};
}

}  // namespace

std::shared_ptr<TransferState> Messages::send(std::span<const LocalSpan> message) {
  const Status known =
      visit_spans("send", *context_->regions, message, [](const LocalSpan&, const RegionInfo&) {});
  if (!known) return failed_transfer(known.error());
  auto state = std::make_shared<TransferState>(total(message));
  std::uint64_t sequence = 0;
  {
    MutexLock lock(mutex_);
    if (closed_) return failed_transfer(error_);
    sequence = next_send_++;
    state->set_poll([weak = weak_from_this(), sequence](const TransferState&, auto deadline) {
      if (const auto self = weak.lock()) self->assist(sequence, deadline);
    });
    sends_.emplace(sequence, Send{{message.begin(), message.end()}, state});
  }
  state->set_cancel([weak = weak_from_this(), sequence] {
    if (const auto self = weak.lock()) self->cancel_send(sequence);
  });
  match(sequence);
  return state;
}

std::shared_ptr<TransferState> Messages::receive(std::span<const LocalSpan> into) {
  auto spans = describe(into);
  if (!spans) return failed_transfer(spans.error());
  auto state = std::make_shared<TransferState>(0);
  std::uint64_t sequence = 0;
  {
    // Held over the sends: receives reach the peer in the order of their numbers.
    MutexLock lock(mutex_);
    if (closed_) return failed_transfer(error_);
    sequence = next_receive_++;
    receives_.emplace(sequence, Waiting{state, total(into)});
    std::size_t next = 0;
    do {
      const std::size_t count = std::min(kSpansAMessage, spans->size() - next);
      const auto first = spans->begin() + static_cast<std::ptrdiff_t>(next);
      next += count;
      link_.send(wire::ReceivePosted{
          sequence, next < spans->size(), {first, first + static_cast<std::ptrdiff_t>(count)}});
    } while (next < spans->size());
  }
  state->set_cancel([send = link_.send, sequence] { send(wire::ReceiveWithdrawn{sequence}); });
  return state;
}

Result<std::vector<wire::ReceiveSpan>> Messages::describe(std::span<const LocalSpan> into) const {
  std::vector<wire::ReceiveSpan> spans;
  spans.reserve(into.size());
  const Status known =
      visit_spans("recv", *context_->regions, into, [&](const LocalSpan& span, const RegionInfo& info) {
        spans.push_back({to_underlying(span.region), info.key, static_cast<std::uint8_t>(info.place.kind),
                         info.place.device, reinterpret_cast<std::uintptr_t>(span.data), span.size});
      });
  if (!known) return tl::unexpected(known.error());
  return spans;
}

Status Messages::on(wire::ReceivePosted posted) {
  const std::uint64_t sequence = posted.sequence;
  bool refuse = false;
  {
    MutexLock lock(mutex_);
    if (sequence != peer_receives_ || posted_.size() >= kMaxPosted) {
      return fail(ErrorCode::kProtocol, "receive {} posted, {} was due, {} wait", sequence, peer_receives_,
                  posted_.size());
    }
    Receive& receive = posted_[sequence];
    if (receive.spans.size() + posted.spans.size() > kMaxPostedSpans) {
      return fail(ErrorCode::kProtocol, "receive {} has more than {} spans", sequence, kMaxPostedSpans);
    }
    for (const wire::ReceiveSpan& span : posted.spans) {
      // The cap on sizes keeps their sum from running over.
      if (span.address + span.size < span.address || span.size > kMaxSpanBytes ||
          span.kind > to_underlying(MemoryKind::kCuda)) {
        return fail(ErrorCode::kProtocol, "receive {} names {} bytes at {:#x}", sequence, span.size,
                    span.address);
      }
    }
    receive.spans.insert(receive.spans.end(), posted.spans.begin(), posted.spans.end());
    if (posted.more != 0) return {};
    receive.complete = true;
    ++peer_receives_;
    refuse = closed_;
    if (refuse) posted_.erase(sequence);
  }
  if (refuse) {
    link_.send(
        wire::ReceiveDone{sequence, 0, wire_code(ErrorCode::kPeerGone), "the sender closes the connection"});
  } else {
    match(sequence);
  }
  return {};
}

// Starts number `sequence` if both halves are there.
void Messages::match(std::uint64_t sequence) {
  Send send;
  Receive receive;
  {
    MutexLock lock(mutex_);
    const auto mine = sends_.find(sequence);
    const auto theirs = posted_.find(sequence);
    if (mine == sends_.end() || theirs == posted_.end() || !theirs->second.complete) return;
    send = std::move(mine->second);
    receive = std::move(theirs->second);
    sends_.erase(mine);
    posted_.erase(theirs);
    writes_.emplace(sequence, Write{send.state, nullptr});
  }
  start(sequence, send, receive);
}

void Messages::start(std::uint64_t sequence, const Send& send, const Receive& receive) {
  if (receive.withdrawn) {  // the receiver was answered then
    {
      MutexLock lock(mutex_);
      writes_.erase(sequence);
    }
    return send.state->finish(
        fail(ErrorCode::kCancelled, "send message {}: its receiver cancelled", sequence));
  }
  if (send.state->cancelled()) {
    return finish(sequence, send.state,
                  fail(ErrorCode::kCancelled, "message {}: its sender cancelled", sequence));
  }
  std::vector<RemoteSpan> into;
  into.reserve(receive.spans.size());
  for (const wire::ReceiveSpan& span : receive.spans) {
    auto remote = link_.import(span);
    if (!remote) return finish(sequence, send.state, tl::unexpected(remote.error()));
    into.push_back(*remote);
  }
  const auto pairing = pair_message(send.message, into);
  if (!pairing) return finish(sequence, send.state, tl::unexpected(pairing.error()));
  const auto write = link_.write(pairing->local, pairing->remote,
                                 [self = shared_from_this(), sequence, state = send.state](Status status) {
                                   self->finish(sequence, state, std::move(status));
                                 });
  send.state->set_cancel([write] { write->cancel(); });
  MutexLock lock(mutex_);
  if (const auto found = writes_.find(sequence); found != writes_.end()) found->second.write = write;
}

// Moves the write of a send whose caller waits.
void Messages::assist(std::uint64_t sequence, std::chrono::steady_clock::time_point deadline) {
  std::shared_ptr<TransferState> write;
  {
    MutexLock lock(mutex_);
    if (const auto found = writes_.find(sequence); found != writes_.end()) write = found->second.write;
  }
  if (write) write->poll(deadline);
}

void Messages::finish(std::uint64_t sequence, const std::shared_ptr<TransferState>& state, Status status) {
  {
    MutexLock lock(mutex_);
    writes_.erase(sequence);
  }
  wire::ReceiveDone done{sequence, state->bytes(), 0, ""};
  if (!status) {
    done.error = wire_code(status.error().code);
    done.message = status.error().message;
  }
  link_.send(std::move(done));
  state->finish(std::move(status));
}

void Messages::cancel_send(std::uint64_t sequence) {
  std::shared_ptr<TransferState> state;
  {
    MutexLock lock(mutex_);
    const auto found = sends_.find(sequence);
    if (found != sends_.end()) state = found->second.state;  // stays, so that its number meets its receive
  }
  if (state) {
    state->finish(
        fail(ErrorCode::kCancelled, "send message {}: cancelled before its receive was posted", sequence));
  }
}

Status Messages::on(const wire::ReceiveDone& done) {
  std::shared_ptr<TransferState> state;
  {
    MutexLock lock(mutex_);
    const auto found = receives_.find(done.sequence);
    if (found == receives_.end()) {
      return fail(ErrorCode::kProtocol, "receive {} done that was not posted", done.sequence);
    }
    if (done.error == 0 && done.bytes > found->second.room) {
      return fail(ErrorCode::kProtocol, "receive {} of {} bytes done with {}", done.sequence,
                  found->second.room, done.bytes);
    }
    state = std::move(found->second.state);
    receives_.erase(found);
    received_ += done.error == 0;
  }
  if (done.error == 0) {
    state->set_bytes(done.bytes);
    state->finish({});
  } else {
    state->finish(fail(code_from_wire(done.error), "recv message {}: {}", done.sequence, done.message));
  }
  return {};
}

Status Messages::on(const wire::ReceiveWithdrawn& withdrawn) {
  std::shared_ptr<TransferState> write;
  bool unmatched = false;
  {
    MutexLock lock(mutex_);
    const auto posted = posted_.find(withdrawn.sequence);
    if (posted != posted_.end()) {
      unmatched = !std::exchange(posted->second.withdrawn, true);
      posted->second.spans.clear();
    } else if (const auto found = writes_.find(withdrawn.sequence); found != writes_.end()) {
      write = found->second.send;
    }
  }
  // The number stays taken: the send that meets it fails, and says nothing more.
  if (unmatched) {
    link_.send(wire::ReceiveDone{withdrawn.sequence, 0, wire_code(ErrorCode::kCancelled),
                                 "cancelled by the receiver"});
  }
  if (write) write->cancel();
  return {};
}

std::uint64_t Messages::received() const {
  MutexLock lock(mutex_);
  return received_;
}

std::size_t Messages::receives_open() const {
  MutexLock lock(mutex_);
  return receives_.size();
}

void Messages::stop(const Error& error) {
  std::map<std::uint64_t, Send> sends;
  std::vector<std::uint64_t> unanswered;
  {
    MutexLock lock(mutex_);
    if (!closed_) error_ = error;
    closed_ = true;
    sends.swap(sends_);
    std::erase_if(posted_, [&](const auto& receive) {
      if (!receive.second.complete) return false;  // its rest is still coming
      if (!receive.second.withdrawn) unanswered.push_back(receive.first);
      return true;
    });
  }
  for (const std::uint64_t sequence : unanswered) {
    link_.send(wire::ReceiveDone{sequence, 0, wire_code(ErrorCode::kPeerGone), error.message});
  }
  for (const auto& [sequence, send] : sends) send.state->finish(tl::unexpected(error));
}

void Messages::close(const Error& error) {
  stop(error);
  std::map<std::uint64_t, Waiting> receives;
  {
    MutexLock lock(mutex_);
    receives.swap(receives_);
  }
  for (const auto& [sequence, receive] : receives) receive.state->finish(tl::unexpected(error));
}

}  // namespace p2p::engine
