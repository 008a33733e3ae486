// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "base/log.h"

namespace p2p {

/// Logs one kind of event at most once a second, so that a peer that causes it cannot fill the disk. Each
/// line says how many events there were since the line before. Thread-safe.
class RateLimitedLog {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kPause{1};

  explicit RateLimitedLog(LogLevel level) : level_(level) {}

  template <class... Args>
  void log(fmt::format_string<Args...> format, Args&&... args) {
    const auto events = count(Clock::now());
    if (!events || !log_enabled(level_)) return;
    const std::string line = fmt::format(format, std::forward<Args>(args)...);
    log_line(level_,
             *events == 1 ? line : fmt::format("{} ({} times since the last such line)", line, *events));
  }

  /// Counts an event. If a line is due, returns how many there were since the last one, this one included.
  std::optional<std::uint64_t> count(Clock::time_point now) {
    silent_.fetch_add(1, std::memory_order_relaxed);
    auto due = due_.load(std::memory_order_relaxed);
    if (now.time_since_epoch() < due) return std::nullopt;
    const Clock::duration next = now.time_since_epoch() + kPause;
    if (!due_.compare_exchange_strong(due, next, std::memory_order_relaxed)) return std::nullopt;
    return silent_.exchange(0, std::memory_order_relaxed);
  }

 private:
  const LogLevel level_;
  std::atomic<Clock::duration> due_{Clock::duration::min()};
  std::atomic<std::uint64_t> silent_{0};
};

}  // namespace p2p
