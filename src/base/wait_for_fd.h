// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace p2p {

/// Waits until `fd` has one of the `events` of poll(2), or is broken; false from the deadline on. Signals,
/// and a system that cannot wait now, end nothing.
inline bool wait_for_fd(int fd, short events, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd waiting{.fd = fd, .events = events, .revents = 0};
    if (::poll(&waiting, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000))) > 0)
      return true;
    if (left.count() <= 0) return false;
  }
}

}  // namespace p2p
