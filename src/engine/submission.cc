// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/submission.h"

#include "base/error.h"

namespace p2p::engine {

bool Submission::doomed() const {
  if (failed_.load(std::memory_order_acquire) || state_->cancelled()) return true;
  for (const auto& remote : list_->remotes) {
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
  for (const auto& remote : list_->remotes) {
    if (remote->state() == RemoteRegion::State::kFailed) return set_error(remote->error());
  }
  set_error({ErrorCode::kCancelled, fmt::format("transfer of {} bytes: cancelled", list_->bytes)});
}

void Submission::end() {
  Status status;
  {
    MutexLock lock(mutex_);
    if (error_) status = tl::unexpected(*error_);
  }
  end_(std::move(status));
}

void end_all(Ended& ended) {
  for (const auto& submission : ended) submission->end();
  ended.clear();
}

void Part::close_one(Ended& ended) {
  if (open.fetch_sub(1, std::memory_order_acq_rel) == 1 && submission->part_done()) {
    ended.push_back(submission);
  }
}

}  // namespace p2p::engine
