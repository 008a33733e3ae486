// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/mutex.h"

namespace p2p::engine {

/// When channels or the session of a path were lost, why, and when they came back. For people to read; not on
/// the path of data. Thread-safe.
class PathHistory {
 public:
  using Clock = std::chrono::steady_clock;

  /// `which` names one of several ("eth1"), and is empty if there is one. `why`: the error's text.
  void lost(std::string_view which, std::string_view why, Clock::time_point now = Clock::now());
  void returned(Clock::time_point now = Clock::now());

  std::uint64_t losses() const;
  std::uint64_t returns() const;

  /// "lost 2 times, last eth1 12.3 s ago: reset by peer; back 2 times, last 11.9 s ago"; empty if
  /// nothing was ever lost.
  std::string describe(Clock::time_point now = Clock::now()) const;

 private:
  mutable Mutex mutex_;
  std::uint64_t losses_ P2P_GUARDED_BY(mutex_) = 0;
  std::uint64_t returns_ P2P_GUARDED_BY(mutex_) = 0;
  std::string which_ P2P_GUARDED_BY(mutex_);
  std::string why_ P2P_GUARDED_BY(mutex_);
  Clock::time_point lost_at_ P2P_GUARDED_BY(mutex_);
  Clock::time_point returned_at_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
