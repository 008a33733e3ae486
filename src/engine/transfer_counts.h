// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "p2p/stats.h"
#include "transport/batch.h"

namespace p2p::engine {

/// How many transfers of one connection were started, and what became of them. Thread-safe.
class TransferCounts {
 public:
  /// How many were before it.
  std::uint64_t started() { return started_.fetch_add(1, std::memory_order_relaxed); }
  void failed() { failed_.fetch_add(1, std::memory_order_relaxed); }
  void completed(Operation operation, std::uint64_t bytes) {
    completed_.fetch_add(1, std::memory_order_relaxed);
    (operation == Operation::kWrite ? written_ : read_).fetch_add(bytes, std::memory_order_relaxed);
  }

  void add_to(Stats& stats) const {
    stats.transfers_started += started_.load(std::memory_order_relaxed);
    stats.transfers_completed += completed_.load(std::memory_order_relaxed);
    stats.transfers_failed += failed_.load(std::memory_order_relaxed);
    stats.bytes_written += written_.load(std::memory_order_relaxed);
    stats.bytes_read += read_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint64_t> started_{0}, completed_{0}, failed_{0}, written_{0}, read_{0};
};

}  // namespace p2p::engine
