// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/submission.h"

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

void Submission::keep(std::shared_ptr<const SegmentList> detour) {
  MutexLock lock(mutex_);
  detours_.push_back(std::move(detour));
}

std::vector<std::size_t> Submission::transports() const {
  std::vector<std::size_t> transports;
  const auto add = [&](const SegmentList& list) {
    for (const auto& portion : list.portions) transports.push_back(portion.transport);
  };
  add(list());
  MutexLock lock(mutex_);
  for (const auto& detour : detours_) add(*detour);
  return transports;
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
  Piece front{submission, cut_batch(batch, limits)};
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

std::vector<Piece> Piece::spread(const std::shared_ptr<const SegmentList>& list) {
  submission->keep(list);
  submission->open_.fetch_add(static_cast<std::uint32_t>(list->portions.size()) - 1,
                              std::memory_order_relaxed);
  std::vector<Piece> pieces;
  for (const auto& portion : list->portions) {
    pieces.push_back({submission,
                      {.operation = batch.operation, .segments = portion.segments, .bytes = portion.bytes},
                      retries});
  }
  return pieces;
}

}  // namespace p2p::engine
