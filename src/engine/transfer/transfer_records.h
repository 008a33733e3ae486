// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/observe/trace.h"
#include "engine/request/segment_list.h"
#include "engine/request/transfer.h"
#include "engine/transfer/latencies.h"
#include "engine/transfer/transfer_counts.h"
#include "p2p/connection.h"

namespace p2p::engine {

/// What is kept of the transfers of one connection: how many there were, how long they took and, where it is
/// asked for, a trace. Thread-safe.
class TransferRecords {
 public:
  /// `transports` outlives it. A null `trace`: none is written.
  TransferRecords(const TransportList& transports, ConnectionId connection, std::shared_ptr<Trace> trace);

  /// One begins: what stands for it.
  std::shared_ptr<TransferState> start(Operation operation, std::uint64_t bytes, std::size_t spans,
                                       const PostOptions& options);

  /// It has ended so. `list` has no portions if none was built; `shares` are empty if it went as that says.
  void end(const SegmentList& list, std::span<const TransportShare> shares, const TransferState& state,
           const Status& status);

  const TransferCounts& counts() const { return counts_; }
  const Latencies& latencies() const { return latencies_; }

 private:
  const ConnectionId connection_;
  const std::shared_ptr<Trace> trace_;
  TransferCounts counts_;
  Latencies latencies_;
};

}  // namespace p2p::engine
