// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace p2p::socket {

/// The least time for a round trip that a TCP stream has seen lately; 0 if that is not known.
std::chrono::microseconds least_round_trip(int fd);

/// Bytes that a TCP stream may have on its way, by its congestion window; 0 if that is not known.
std::uint64_t bytes_on_path(int fd);

/// The name of a TCP stream's congestion control, as the system has it; empty if it is none.
std::string congestion_control(int fd);

/// Its congestion control takes a lost packet for what it is, and not for a path that is full (BBR).
bool withstands_loss(int fd);

/// What a TCP stream has moved and what is still to be; bytes. All 0 if that is not known.
struct Traffic {
  std::uint64_t acknowledged = 0;
  std::uint64_t received = 0;
  std::uint64_t in_flight = 0;
  std::uint64_t unsent = 0;  ///< given to the kernel, which has not sent them once
  std::uint64_t window = 0;  ///< that the other side offers
  std::uint64_t unread = 0;
  std::uint64_t on_path = 0;       ///< as of `bytes_on_path`, or what comes in a round trip if that is more
  bool waits_for_buffers = false;  ///< more could be on its way if the hosts' buffers were larger
  std::chrono::microseconds round_trip{0};  ///< as of `least_round_trip`

  /// As good as: the other side's thread is behind.
  bool window_full() const { return in_flight + (std::uint64_t{64} << 10) >= window; }
};
Traffic traffic_of(int fd);

}  // namespace p2p::socket
