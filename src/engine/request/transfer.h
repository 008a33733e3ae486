// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/observe/transfer_trace.h"
#include "p2p/result.h"

namespace p2p::engine {

/// The outcome of one submitted operation, shared by the caller's handles and whoever works on it.
/// Thread-safe. It ends once: the first `finish` counts.
class TransferState {
 public:
  explicit TransferState(std::uint64_t bytes = 0) : bytes_(bytes) {}

  bool done() const { return message_.load(std::memory_order_acquire) == kDone; }

  /// Polls as `set_poll` says, then sleeps.
  Status wait(std::chrono::nanoseconds timeout);
  Status status() const;
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  void on_done(std::function<void()> callback);

  /// Runs what `set_cancel` gave, once.
  void cancel();
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  /// Does what `set_poll` gave, on behalf of a transfer that this one is a part of.
  void poll(std::chrono::steady_clock::time_point deadline) const {
    if (!done() && poll_) poll_(*this, deadline);
  }

  /// When it began, for its latency; nothing: it is not timed. Before the transfer is handed out.
  using TimePoint = std::chrono::steady_clock::time_point;
  void set_timed_from(TimePoint start) { timed_from_ = start; }
  const std::optional<TimePoint>& timed_from() const { return timed_from_; }

  /// Null: it is not traced. Likewise.
  void set_trace(std::unique_ptr<TransferTrace> trace) { trace_ = std::move(trace); }
  TransferTrace* trace() const { return trace_.get(); }

  /// Ends the operation and runs the callbacks on this thread. Hold no lock.
  void finish(Status status);
  void set_bytes(std::uint64_t bytes) { bytes_.store(bytes, std::memory_order_relaxed); }

  /// How to end the operation early; called at once if that was asked for already. Before the transfer is
  /// handed out.
  void set_cancel(std::function<void()> cancel);

  /// What a waiting caller does before it sleeps: moves the work on by itself until the time is up or
  /// the transfer is done. Set before the transfer is handed out.
  using Poll = std::function<void(const TransferState&, std::chrono::steady_clock::time_point deadline)>;
  void set_poll(Poll poll) { poll_ = std::move(poll); }

 private:
  void run_callbacks();

  // The futex message. kDone is set after status_ and never left.
  static constexpr std::uint32_t kRunning = 0;
  static constexpr std::uint32_t kWaited = 1;  // somebody sleeps on it
  static constexpr std::uint32_t kDone = 2;

  std::atomic<std::uint32_t> message_{kRunning};
  std::atomic<std::uint64_t> bytes_;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> finishing_{false};
  Status status_;  // written once before kDone
  Poll poll_;
  std::function<void()> cancel_;
  std::optional<TimePoint> timed_from_;
  std::unique_ptr<TransferTrace> trace_;
  std::atomic<bool> called_back_{false};  // there were callbacks
  Mutex mutex_;
  std::vector<std::function<void()>> callbacks_ P2P_GUARDED_BY(mutex_);
};

/// A transfer that failed before it began.
std::shared_ptr<TransferState> failed_transfer(Error error);

}  // namespace p2p::engine
