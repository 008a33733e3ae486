// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/segment_list.h"
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
  void completed(const SegmentList& list) {
    completed_.fetch_add(1, std::memory_order_relaxed);
    for (const auto& portion : list.portions) {
      Bytes& bytes = bytes_[portion.transport];
      (list.operation == Operation::kWrite ? bytes.written : bytes.read)
          .fetch_add(portion.bytes, std::memory_order_relaxed);
    }
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

  const TransportList& transports_;
  std::vector<Bytes> bytes_;  // by transport
  std::atomic<std::uint64_t> started_{0}, completed_{0}, failed_{0};
};

}  // namespace p2p::engine
