// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "p2p/result.h"

namespace p2p::engine {

/// The bytes that all peers together may make an endpoint keep (Options::max_peer_bytes). Any thread.
class PeerBudget {
 public:
  explicit PeerBudget(std::uint64_t most) : most_(most) {}

  /// False, and nothing is taken, if that would be more than the bound.
  bool take(std::uint64_t bytes);
  void give_back(std::uint64_t bytes) { taken_.fetch_sub(bytes, std::memory_order_relaxed); }

  std::uint64_t taken() const { return taken_.load(std::memory_order_relaxed); }
  std::uint64_t most() const { return most_; }

 private:
  const std::uint64_t most_;
  std::atomic<std::uint64_t> taken_{0};
};

/// What one queue of a connection keeps for its peer. The first bytes are free, so that whoever keeps little
/// goes on while others have used the budget up; the rest is taken in steps. Not thread-safe.
class PeerShare {
 public:
  static constexpr std::uint64_t kStep = std::uint64_t{16} << 10;  ///< bytes; so many are free, too

  explicit PeerShare(std::shared_ptr<PeerBudget> budget) : budget_(std::move(budget)) {}
  ~PeerShare() { budget_->give_back(taken_); }
  PeerShare(const PeerShare&) = delete;
  PeerShare& operator=(const PeerShare&) = delete;

  /// The queue keeps so many bytes from now on. kUnavailable, and nothing changes, if that is more than
  /// before and more than is left for all.
  Status set(std::uint64_t bytes);

  std::uint64_t bytes() const { return bytes_; }

 private:
  const std::shared_ptr<PeerBudget> budget_;
  std::uint64_t bytes_ = 0;
  std::uint64_t taken_ = 0;  // of the budget, a number of steps
};

}  // namespace p2p::engine
