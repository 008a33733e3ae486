// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/request/segment_list.h"
#include "p2p/stats.h"

namespace p2p::engine {

/// How many transfers of one connection were started, and what became of them. Thread-safe.
class TransferCounts {
 public:
  /// `transports` outlives it.
  explicit TransferCounts(const TransportList& transports)
      : transports_(transports), bytes_(transports.size()) {}

  /// How many were before it.
  std::uint64_t started() { return started_.fetch_add(1, std::memory_order_relaxed); }
  void failed() { failed_.fetch_add(1, std::memory_order_relaxed); }
  /// `shares` are empty if it went as the list says.
  void completed(const SegmentList& list, std::span<const TransportShare> shares) {
    completed_.fetch_add(1, std::memory_order_relaxed);
    for (const TransportShare& share : shares) add(list.operation, share.transport, share.bytes);
    if (!shares.empty()) return;
    for (const auto& portion : list.portions) add(list.operation, portion.transport, portion.bytes);
  }

  void add_to(Stats& stats) const {
    stats.transfers_started += started_.load(std::memory_order_relaxed);
    stats.transfers_completed += completed_.load(std::memory_order_relaxed);
    stats.transfers_failed += failed_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      const std::uint64_t written = bytes_[i].written.load(std::memory_order_relaxed);
      const std::uint64_t read = bytes_[i].read.load(std::memory_order_relaxed);
      stats.bytes_written += written;
      stats.bytes_read += read;
      if (written + read == 0) continue;
      stats.by_transport.push_back({std::string(transports_[i].transport->name()), written, read});
    }
  }

 private:
  struct Bytes {
    std::atomic<std::uint64_t> written{0}, read{0};
  };

  void add(Operation operation, std::size_t transport, std::uint64_t bytes) {
    Bytes& sum = bytes_[transport];
    (operation == Operation::kWrite ? sum.written : sum.read).fetch_add(bytes, std::memory_order_relaxed);
  }

  const TransportList& transports_;
  std::vector<Bytes> bytes_;  // by transport
  std::atomic<std::uint64_t> started_{0}, completed_{0}, failed_{0};
};

}  // namespace p2p::engine
