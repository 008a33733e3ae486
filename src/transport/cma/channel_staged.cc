// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A channel's batches with device memory of this process, or with memory of the peer that is out of reach.
// The system copies host memory only, so a device's bytes go through pinned slots; one is filled or emptied
// by a device while another is copied, here or by the owner of the peer's memory.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/underlying.h"
#include "transport/cma/channel.h"
#include "transport/registration.h"

namespace p2p::cma {
namespace {

Status cancelled() { return fail(ErrorCode::kCancelled, "cancelled before it was copied"); }

void list_pieces(const Batch& batch, std::vector<device::StagedPiece>& pieces) {
  pieces.clear();
  batch.for_each_piece([&](const Segment& piece) {
    pieces.push_back(device::StagedPiece::of(piece.local, piece.size, piece.registration->info().place));
  });
}

bool is_for_owner(const Batch& batch) {
  std::uint64_t bytes = 0;
  for (const Segment& segment : batch.segments) bytes += segment.size;
  return bytes >= kOwnerBytes || batch.segments.size() >= kOwnerPieces;
}

std::byte* pinned_of(device::Staging::Slot* slot) { return slot == nullptr ? nullptr : slot->data(); }

}  // namespace

// False: all slots are in use, or another channel is to have it.
bool CmaChannel::post_staged(const Batch& batch, bool reaches) {
  using Use = device::Staging::Use;
  // Between PID namespaces the owner reaches shared slots only.
  const bool may_ask = rings_.has_requests() && !slots_;
  Staged staged{.batch = batch, .by_owner = !reaches || (may_ask && is_for_owner(batch))};
  if (reaches && staged.by_owner && batch.bytes < kSpreadBytes &&
      std::ranges::any_of(staged_, &Staged::by_owner)) {
    return false;
  }
  if (!reaches && (staged.shared = slots_.take()) < 0) return false;
  std::optional<Status> ended;
  if (starts_on_device(batch)) {
    const auto slot = staging_->take(batch.operation == Operation::kWrite ? Use::kDeparture : Use::kAnswer);
    if (slot && *slot == nullptr) return give_back(staged), false;
    if (slot) staged.slot = *slot;
    if (!slot) ended = tl::unexpected(slot.error());
  }
  if (!ended) ended = begin(staged);
  if (ended) {
    give_back(staged);
    done_.push_back({batch.id, std::move(*ended)});
  } else {
    staged_.push_back(std::move(staged));
  }
  return true;
}

void CmaChannel::give_back(const Staged& staged) {
  if (staged.slot != nullptr) staging_->give_back(*staged.slot);
  if (staged.shared >= 0) slots_.give_back(staged.shared);
}

// How it ended, if it has, as of those below.
std::optional<Status> CmaChannel::begin(Staged& staged) {
  if (Status alive = check_alive(staged.batch); !alive) return alive;
  if (staged.batch.operation == Operation::kWrite) {
    if (staged.slot == nullptr) return send_on(staged);
    list_pieces(staged.batch, pieces_);
    staging_->pack(*staged.slot, pieces_);
    return std::nullopt;
  }
  if (staged.by_owner) return ask(staged);
  if (Status copied = copy(staged.batch, staged.slot->data()); !copied) return copied;
  return land(staged);
}

void CmaChannel::move_staged() {
  for (std::size_t i = 0; i < staged_.size();) {
    Staged& staged = staged_[i];
    auto ended = advance(staged);
    if (!ended) {
      ++i;
      continue;
    }
    done_.push_back({staged.batch.id, std::move(*ended)});
    give_back(staged);
    staged_.erase(staged_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::optional<Status> CmaChannel::advance(Staged& staged) {
  const bool read = staged.batch.operation == Operation::kRead;
  switch (staged.step) {
    case Step::kToSlot:
      if (!staged.slot->finished()) return std::nullopt;
      if (!staged.slot->status()) return staged.slot->status();
      if (staged.abandoned) return cancelled();
      return send_on(staged);
    case Step::kToAsk: return staged.abandoned ? cancelled() : ask(staged);
    case Step::kAsked: return std::nullopt;
    case Step::kAnswered:
      if (!staged.outcome || !read) return staged.outcome;
      if (staged.abandoned) return cancelled();
      return land(staged);
    case Step::kFromSlot: break;
  }
  return staged.slot->finished() ? std::optional(staged.slot->status()) : std::nullopt;
}

// Of a write, once its bytes lie in a slot or on the host.
std::optional<Status> CmaChannel::send_on(Staged& staged) {
  Status filled;
  if (staged.shared >= 0) filled = slots_.move(staged.shared, staged.batch, pinned_of(staged.slot), true);
  if (!filled) return filled;
  return staged.by_owner ? ask(staged) : copy(staged.batch, staged.slot->data());
}

std::optional<Status> CmaChannel::ask(Staged& staged) {
  RequestList list(to_underlying(staged.batch.id), staged.batch.operation);
  auto at = staged.shared >= 0 ? static_cast<std::uint64_t>(staged.shared)
                               : reinterpret_cast<std::uint64_t>(staged.slot->data());
  staged.batch.for_each_piece([&](const Segment& piece) {
    list.add(*piece.key, piece.remote, {}, at, piece.size);
    at += piece.size;
  });
  const bool asked = noted(rings_.ask(encode(list.requests().front()), peer_.socket));
  staged.step = asked ? Step::kAsked : Step::kToAsk;
  poll_until_ = Clock::now() + kOwnersTurn;
  return std::nullopt;
}

Status CmaChannel::take_outcome(CopyOutcome outcome) {
  const auto staged = std::ranges::find_if(staged_, [&](const Staged& each) {
    return each.step == Step::kAsked && to_underlying(each.batch.id) == outcome.batch;
  });
  if (staged == staged_.end()) {
    return fail(ErrorCode::kProtocol, "a cma peer has copied batch {}, which it was not asked for",
                outcome.batch);
  }
  staged->step = Step::kAnswered;
  staged->outcome = std::move(outcome.status);
  return {};
}

// Of a read, once its bytes have come. Memory may have been freed while the owner was at it.
std::optional<Status> CmaChannel::land(Staged& staged) {
  Status landed = check_alive(staged.batch);
  if (landed && staged.shared >= 0) {
    landed = slots_.move(staged.shared, staged.batch, pinned_of(staged.slot), false);
  }
  if (!landed || staged.slot == nullptr) return landed;
  list_pieces(staged.batch, pieces_);
  staging_->unpack(*staged.slot, pieces_);
  staged.step = Step::kFromSlot;
  return std::nullopt;
}

// What the owner was asked for it copies, and the batch ends with its answer. Else a write whose bytes did
// not leave yet is not made, nor a read; a device that has begun uses the memory for moments more.
void CmaChannel::abandon(BatchId id) {
  for (Staged& staged : staged_) staged.abandoned = staged.abandoned || staged.batch.id == id;
}

bool CmaChannel::awaits_owner() const {
  return std::ranges::any_of(staged_, [](const Staged& each) { return each.step == Step::kAsked; });
}

// Whoever waits for the owner alone is woken by its answer, and polls for it only for a while.
bool CmaChannel::busy() const {
  if (!done_.empty()) return true;
  if (!serves()) return false;
  if (!served_.empty() || answer_ || files_.has_answer()) return true;
  if (staged_.empty()) return false;
  const bool asked =
      std::ranges::all_of(staged_, [](const Staged& each) { return each.step == Step::kAsked; });
  return !asked || Clock::now() < poll_until_;
}

// Waits for devices.
void CmaChannel::fail_staged(const Error& why) {
  if (staging_) staging_->close();
  staging_.reset();
  for (const Staged& staged : staged_) done_.push_back({staged.batch.id, tl::unexpected(why)});
  staged_.clear();
}

}  // namespace p2p::cma
