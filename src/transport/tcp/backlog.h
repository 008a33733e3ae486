// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace p2p::tcp {

/// How much a stream over a long path gives its socket ahead of its turn. The kernel's buffer grows to
/// megabytes, and a stream that loses packets would hold work for seconds that others could carry. Too
/// little, and a fast stream has nothing to send until its thread comes back. Belongs to a channel, on its
/// thread.
class Backlog {
 public:
  using Clock = std::chrono::steady_clock;

  /// For a stream that may have so many bytes on its way.
  static std::uint64_t bytes_for(std::uint64_t on_path);

  /// The socket of a stream whose path takes so long.
  void start(int fd, std::chrono::microseconds round_trip);

  bool started() const { return fd_ >= 0; }

  /// Once started: follows the stream's speed, when there is something to send.
  void follow();

 private:
  int fd_ = -1;  // not started: the kernel's own bound
  std::chrono::microseconds round_trip_{0};
  Clock::time_point next_;
  std::uint64_t bytes_ = 0;
};

}  // namespace p2p::tcp
