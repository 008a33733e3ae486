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

bool RemoteRegion::add_user_if(State state) {
  std::uint64_t word = word_.load(std::memory_order_acquire);
  do {
    if (state_of(word) != state) return false;
  } while (!word_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel));
  return true;
}

bool RemoteRegion::begin_import() { return add_user_if(State::kWaiting); }

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
    word_.fetch_or(kReadyBit, std::memory_order_acq_rel);
    resolved.swap(resolved_);
  }
  for (const auto& call : resolved) call();
}

void RemoteRegion::set_failed(Error error, std::function<void()> through) {
  std::vector<std::function<void()>> resolved;
  bool used = false;
  {
    MutexLock lock(mutex_);
    if (state() != State::kFailed) error_ = std::move(error);
    used = users_of(word_.fetch_or(kFailedBit, std::memory_order_acq_rel)) != 0;
    resolved.swap(resolved_);
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

bool RemoteRegion::add_user() { return add_user_if(State::kReady); }

// Who fails the region counts the users with the mutex held: what it left for the last one is seen here.
void RemoteRegion::remove_user() {
  const std::uint64_t before = word_.fetch_sub(1, std::memory_order_acq_rel);
  if (users_of(before) != 1 || state_of(before) != State::kFailed) return;
  std::vector<std::function<void()>> through;
  {
    MutexLock lock(mutex_);
    through.swap(through_);
  }
  retire();
  for (const auto& call : through) call();
}

}  // namespace p2p::engine
