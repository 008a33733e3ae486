// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace p2p::chaos {

/// Stops one of some processes at a time, and lets it go on, while it lives.
class Stopper {
 public:
  Stopper(std::vector<pid_t> processes, std::uint64_t seed, std::chrono::milliseconds longest);
  ~Stopper();
  Stopper(const Stopper&) = delete;
  Stopper& operator=(const Stopper&) = delete;

  std::uint64_t count() const { return count_; }

 private:
  void run(std::uint64_t seed) const;

  const std::vector<pid_t> processes_;
  const std::chrono::milliseconds longest_;
  mutable std::atomic<std::uint64_t> count_{0};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace p2p::chaos
