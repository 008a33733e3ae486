// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace p2p::tcp {

/// How many bytes of answers a stream may have on their way to this side. On a short path one number does. On
/// a long one it is what the stream brings in a few round trips: less, and it stands still, more, and it
/// holds what other streams would bring sooner. Reads no clock. Belongs to a channel, on its thread.
class ReadWindow {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::uint64_t kMost = 8U << 20;
  static constexpr std::uint64_t kLeast = 192U << 10;  // on a long path, and there at first

  void set_long_path(std::chrono::microseconds round_trip) {
    round_trip_ = round_trip;
    bytes_ = kLeast;
  }
  bool long_path() const { return round_trip_.count() != 0; }

  std::uint64_t bytes() const { return bytes_; }

  /// Whether so many bytes more may be asked for. On a long path a second answer as large as the first always
  /// is: with a single one the path would be empty after each for a round trip.
  bool has_room(std::uint64_t under_way, std::uint64_t more) const {
    return under_way <= (long_path() ? more : 0) || under_way + more <= bytes_;
  }

  /// On a long path: the first read after a pause was posted; one has ended.
  void begin(Clock::time_point now);
  void ended(std::uint64_t bytes, Clock::time_point now);

 private:
  std::chrono::microseconds round_trip_{0};  // of a long path
  std::uint64_t bytes_ = kMost;
  Clock::time_point from_;  // since when `arrived_` is counted
  std::uint64_t arrived_ = 0;
  double rate_ = 0;  // bytes a second
};

}  // namespace p2p::tcp
