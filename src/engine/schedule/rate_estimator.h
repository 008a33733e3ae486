// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace p2p::engine {

/// What a channel has under way, and when that is likely to be at its end.
struct RunnerLoad {
  std::uint64_t flying = 0;                 ///< bytes
  double rate = 0;                          ///< bytes a second; 0: not known
  std::chrono::duration<double> silence{};  ///< since bytes arrived, or were sent after a pause
};

/// How fast a channel moves what it is given. Its runner writes, with its mutex held; reading needs no lock.
class RateEstimator {
 public:
  using Clock = std::chrono::steady_clock;

  /// Short items say nothing of a channel's speed, and no clock is read for their sake.
  static constexpr std::uint64_t kLeastBytes = std::uint64_t{64} << 10;

  /// Items are under way.
  bool has_inflight() const { return items_.load(std::memory_order_relaxed) != 0; }
  double rate() const { return rate_.load(std::memory_order_relaxed); }  ///< the last one; bytes a second
  std::uint64_t flying() const { return flying_.load(std::memory_order_relaxed); }  ///< their bytes

  /// Of the channel's path; 0: not known.
  std::chrono::nanoseconds round_trip() const { return round_trip_; }

  /// Before others see it. Over a short path what it moves in `most_held` is enough for it to hold, and a MiB
  /// at least; 0: nothing is.
  void set_path(std::chrono::nanoseconds round_trip, std::chrono::duration<double> most_held);
  bool holds_enough() const;

  void sent(std::uint64_t bytes);
  void ended(std::uint64_t bytes);

  /// All that came at once has ended: computes the rate anew.
  void update();

  /// Nothing is under way any more.
  void clear();

  RunnerLoad standing(Clock::time_point now) const;

 private:
  void rest();

  std::chrono::nanoseconds round_trip_{0};
  std::chrono::duration<double> most_held_{};
  std::atomic<std::size_t> items_{0};
  std::atomic<std::uint64_t> flying_{0};
  std::atomic<double> rate_{0};
  std::atomic<Clock::time_point> taken_at_{};  // the rate
  std::atomic<Clock::time_point> heard_at_{};  // zero: nothing is waited for
  Clock::time_point from_{};                   // since when `arrived_` is counted; zero: it is not
  std::uint64_t arrived_ = 0;
};

}  // namespace p2p::engine
