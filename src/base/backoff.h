// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>

namespace p2p {

struct BackoffLimits {
  std::chrono::milliseconds first{5};
  std::chrono::milliseconds longest{160};
  int most = std::numeric_limits<int>::max();  ///< so many pauses, and then no attempt more
};

/// For a port that closes connections before it has answered, as one that strangers flood may: 12 dials, with
/// some 1.1 s of pauses.
inline constexpr BackoffLimits kRedials{.most = 11};

/// The pauses between attempts at something that may work later: each is twice as long as the one before, up
/// to a limit. One thread at a time.
class Backoff {
 public:
  explicit Backoff(BackoffLimits limits) : limits_(limits), next_(limits.first) {}

  /// The pause before the next attempt; nothing: the last one was made.
  std::optional<std::chrono::milliseconds> next() {
    if (pauses_ == limits_.most) return std::nullopt;
    ++pauses_;
    return std::exchange(next_, std::min(limits_.longest, 2 * next_));
  }

  /// An attempt has worked.
  void reset() {
    pauses_ = 0;
    next_ = limits_.first;
  }

 private:
  BackoffLimits limits_;
  std::chrono::milliseconds next_;
  int pauses_ = 0;
};

}  // namespace p2p
