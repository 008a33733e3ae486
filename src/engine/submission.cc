// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/submission.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace p2p::engine {

bool Submission::doomed() const {
  if (failed_.load(std::memory_order_acquire) || state()->cancelled()) return true;
  for (const auto& remote : list().remotes) {
    if (remote->state() != RemoteRegion::State::kReady) return true;
  }
  return false;
}

void Submission::set_error(Error error) {
  MutexLock lock(mutex_);
  if (!error_) error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
}

void Submission::set_dropped() {
  for (const auto& remote : list().remotes) {
    if (remote->state() == RemoteRegion::State::kFailed) return set_error(remote->error());
  }
  set_error({ErrorCode::kCancelled, fmt::format("transfer of {} bytes: cancelled", list().bytes)});
}

void Submission::keep(std::shared_ptr<const SegmentList> detour, std::size_t around) {
  MutexLock lock(mutex_);
  detours_.push_back({std::move(detour), around});
  detoured_.store(true, std::memory_order_relaxed);
}

std::vector<std::size_t> Submission::transports() const {
  std::vector<std::size_t> transports;
  const auto add = [&](const SegmentList& list) {
    for (const auto& portion : list.portions) transports.push_back(portion.transport);
  };
  add(list());
  MutexLock lock(mutex_);
  for (const auto& detour : detours_) add(*detour.list);
  return transports;
}

// A part that went around more than one transport is taken from each but the last.
std::vector<TransportShare> Submission::shares() const {
  std::vector<TransportShare> shares;
  if (!detoured_.load(std::memory_order_relaxed)) return shares;
  const auto share = [&](std::size_t transport) -> std::uint64_t& {
    const auto found = std::ranges::find(shares, transport, &TransportShare::transport);
    return (found != shares.end() ? *found : shares.emplace_back(transport)).bytes;
  };
  for (const auto& portion : list().portions) share(portion.transport) += portion.bytes;
  MutexLock lock(mutex_);
  for (const auto& detour : detours_) {
    share(detour.around) -= detour.list->bytes;
    for (const auto& portion : detour.list->portions) share(portion.transport) += portion.bytes;
  }
  std::erase_if(shares, [](const TransportShare& one) { return one.bytes == 0; });
  return shares;
}

void Submission::end() {
  Status status;
  {
    MutexLock lock(mutex_);
    if (error_) status = tl::unexpected(*error_);
  }
  submitter_->ended(*this, std::move(status));
}

Piece Piece::cut(const BatchLimits& limits) {
  Piece front{.submission = submission, .batch = cut_batch(batch, limits), .transport = transport};
  if (!empty()) submission->open_.fetch_add(1, std::memory_order_relaxed);
  return front;
}

void Piece::close(Deferred& deferred) {
  if (submission->open_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  deferred.end(std::move(submission));
}

void Piece::fail(Error error, Deferred& deferred) {
  submission->set_error(std::move(error));
  close(deferred);
}

void Piece::drop(Deferred& deferred) {
  submission->set_dropped();
  close(deferred);
}

void Piece::refuse(const Refusal& refusal, Deferred& deferred) {
  if (!refusal.detour) return fail(refusal.why, deferred);
  deferred.call(
      [piece = std::move(*this), why = refusal.why] { piece.submission->submitter_->detour(piece, why); });
}

bool Piece::note_loss(Clock::time_point now, Clock::duration patience) {
  if (retries++ == 0) lost_at = now;
  return !worn_out() && (diverted || retries == 1 || now - lost_at < patience);
}

void Piece::divert(Error why, Deferred& deferred) {
  deferred.call(
      [piece = std::move(*this), why = std::move(why)] { piece.submission->submitter_->divert(piece, why); });
}

std::vector<Piece> Piece::spread(const std::shared_ptr<const SegmentList>& list) {
  submission->keep(list, transport);
  submission->open_.fetch_add(static_cast<std::uint32_t>(list->portions.size()) - 1,
                              std::memory_order_relaxed);
  std::vector<Piece> pieces;
  for (const auto& portion : list->portions) {
    const Batch whole{.operation = batch.operation, .segments = portion.segments, .bytes = portion.bytes};
    pieces.push_back({.submission = submission,
                      .batch = whole,
                      .retries = retries,
                      .diverted = diverted,
                      .lost_at = lost_at,
                      .transport = portion.transport});
  }
  return pieces;
}

}  // namespace p2p::engine
