// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/callback.h"
#include "base/error.h"
#include "base/futex.h"
#include "base/mutex.h"
#include "p2p/connection.h"

namespace p2p::engine {

/// Where one connection is in its life, why it takes no more work, who is called and who sleeps until it
/// changes. Thread-safe.
class Lifecycle {
 public:
  ConnectionState state() const { return state_.load(std::memory_order_acquire); }

  /// The first error, from when it takes no more work.
  Status status() const {
    MutexLock lock(mutex_);
    return error_ ? Status(tl::unexpected(*error_)) : Status();
  }

  void open() { state_.store(ConnectionState::kOpen, std::memory_order_release); }

  /// It takes no more work. If it is open it is closing from now on.
  void refuse(const Error& error) {
    MutexLock lock(mutex_);
    if (!error_) error_ = error;
    auto expected = ConnectionState::kOpen;
    state_.compare_exchange_strong(expected, ConnectionState::kClosing);
  }

  /// It has ended; `error` unless there is one already. The one that counts.
  Error close(const Error& error) {
    MutexLock lock(mutex_);
    if (!error_) error_ = error;
    state_.store(ConnectionState::kClosed, std::memory_order_release);
    return *error_;
  }

  /// `callback` is called when it has opened and when it has closed. Not any more if it is closed.
  void on_change(std::function<void()> callback) {
    MutexLock lock(mutex_);
    if (state() != ConnectionState::kClosed) watchers_.push_back(std::move(callback));
  }

  /// Until it is no longer connecting; what it is then, or that it took too long.
  Status wait_open(std::chrono::steady_clock::time_point deadline) {
    while (true) {
      const std::uint32_t seen = changes();
      if (state() != ConnectionState::kConnecting) return status();
      if (std::chrono::steady_clock::now() >= deadline)
        return fail(ErrorCode::kTimedOut, "connect: the handshake is not done in time");
      wait(seen, deadline);
    }
  }

  /// It has opened or closed.
  void call_watchers() {
    std::vector<std::function<void()>> watchers;
    {
      MutexLock lock(mutex_);
      watchers = state() == ConnectionState::kClosed ? std::exchange(watchers_, {}) : watchers_;
    }
    for (const auto& watcher : watchers) run_callback(watcher);
  }

  /// To be taken before one looks at what one waits for.
  std::uint32_t changes() const { return changes_.load(std::memory_order_acquire); }

  /// Wakes those who wait. Each message of the session ends here, and mostly nobody waits.
  void changed() {
    changes_.fetch_add(1);
    if (waiters_.load() != 0) futex_wake_all(changes_);
  }

  /// Until a change after `seen`, or the deadline; may return early.
  void wait(std::uint32_t seen, std::chrono::steady_clock::time_point deadline) {
    waiters_.fetch_add(1);  // before the system compares `seen`: a change after it sees the waiter
    futex_wait(changes_, seen, deadline);
    waiters_.fetch_sub(1);
  }

 private:
  std::atomic<ConnectionState> state_{ConnectionState::kConnecting};
  std::atomic<std::uint32_t> changes_{0};
  std::atomic<std::uint32_t> waiters_{0};
  mutable Mutex mutex_;
  std::optional<Error> error_ P2P_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> watchers_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
