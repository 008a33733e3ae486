// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/transfer/transfer_records.h"

#include <chrono>
#include <utility>

namespace p2p::engine {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

TransferRecords::TransferRecords(const TransportList& transports, ConnectionId connection,
                                 std::shared_ptr<Trace> trace)
    : connection_(connection), trace_(std::move(trace)), counts_(transports), latencies_(transports) {}

std::shared_ptr<TransferState> TransferRecords::start(Operation operation, std::uint64_t bytes,
                                                      std::size_t spans, const PostOptions& options) {
  const std::uint64_t number = counts_.started();
  auto state = std::make_shared<TransferState>(bytes);
  if (Latencies::times(number, bytes)) state->set_timed_from(Clock::now());
  if (trace_) {
    state->set_trace(std::make_unique<TransferTrace>(
        trace_, TransferTrace::Subject{operation, bytes, spans, connection_, options.trace_id}));
  }
  return state;
}

void TransferRecords::end(const SegmentList& list, std::span<const TransportShare> shares,
                          const TransferState& state, const Status& status) {
  if (auto* const trace = state.trace()) trace->ended(status);
  if (!status) return counts_.failed();
  counts_.completed(list, shares);
  if (state.timed_from()) latencies_.add(list, shares, Clock::now() - *state.timed_from());
}

}  // namespace p2p::engine
