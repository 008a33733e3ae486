// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

namespace p2p {

/// When to dial again a port that closed the connection before it answered, as a flooded port does: up to
/// kMaxDials times in all, with pauses that double up to kLongestPause, about 1.1 s together.
class Redial {
 public:
  static constexpr int kMaxDials = 12;
  static constexpr std::chrono::milliseconds kFirstPause{5};
  static constexpr std::chrono::milliseconds kLongestPause{160};

  void dialled() { ++dials_; }

  /// The pause before the next dial; none if that was the last one. After `dialled` only.
  std::optional<std::chrono::milliseconds> pause() const {
    if (dials_ == kMaxDials) return std::nullopt;
    return std::min(kLongestPause, kFirstPause * (1 << (dials_ - 1)));
  }

 private:
  int dials_ = 0;
};

}  // namespace p2p
