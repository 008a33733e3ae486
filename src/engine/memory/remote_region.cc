// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/memory/remote_region.h"

#include <utility>

namespace p2p::engine {

Error RemoteRegion::error() const {
  MutexLock lock(mutex_);
  return error_;
}

bool RemoteRegion::when_resolved(std::function<void()> then) {
  MutexLock lock(mutex_);
  if (state() != State::kWaiting) return false;
  resolved_.push_back(std::move(then));
  return true;
}

bool RemoteRegion::begin_import() {
  MutexLock lock(mutex_);
  if (state() != State::kWaiting) return false;
  ++users_;
  return true;
}

void RemoteRegion::set_ready(const RegionInfo& info, std::vector<std::unique_ptr<RemoteKey>> keys,
                             std::vector<std::string> reasons) {
  std::vector<std::function<void()>> resolved;
  {
    MutexLock lock(mutex_);
    if (state() == State::kReady) return;
    keys_ = std::move(keys);
    if (state() == State::kFailed) return;  // the last user retires them
    info_ = info;
    reasons_ = std::move(reasons);
    state_.store(State::kReady, std::memory_order_release);
    resolved.swap(resolved_);
  }
  for (const auto& call : resolved) call();
}

void RemoteRegion::set_failed(Error error, std::function<void()> through) {
  std::vector<std::function<void()>> resolved;
  bool used = false;
  {
    MutexLock lock(mutex_);
    if (state() != State::kFailed) {
      error_ = std::move(error);
      state_.store(State::kFailed, std::memory_order_release);
    }
    resolved.swap(resolved_);
    used = users_ != 0;
    if (used && through) through_.push_back(std::exchange(through, nullptr));
  }
  if (!used) retire();
  if (through) through();
  for (const auto& call : resolved) call();
}

// Of a failed region: no user comes any more.
void RemoteRegion::retire() const {
  for (const auto& key : keys_) {
    if (key) key->retire();
  }
}

bool RemoteRegion::add_user() {
  MutexLock lock(mutex_);
  if (state() != State::kReady) return false;
  ++users_;
  return true;
}

void RemoteRegion::remove_user() {
  std::vector<std::function<void()>> through;
  {
    MutexLock lock(mutex_);
    if (--users_ != 0 || state() != State::kFailed) return;
    through.swap(through_);
  }
  retire();
  for (const auto& call : through) call();
}

}  // namespace p2p::engine
