// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/transfer/latencies.h"

#include <algorithm>
#include <bit>
#include <memory>

namespace p2p::engine {
namespace {

/// The first bucket whose bound is no shorter.
std::size_t bucket_of(std::chrono::nanoseconds took) {
  const auto whole = std::chrono::ceil<std::chrono::microseconds>(took).count();
  if (whole <= 1) return 0;
  const auto bucket = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(whole - 1)));
  return std::min(bucket, Latency::kBuckets - 1);
}

}  // namespace

Latencies::~Latencies() {
  for (const auto& row : rows_) delete row.load();
}

Latencies::Row& Latencies::row(std::size_t place) {
  std::atomic<Row*>& held = rows_[place];
  if (Row* const there = held.load(std::memory_order_acquire)) return *there;
  auto made = std::make_unique<Row>();
  Row* none = nullptr;
  if (!held.compare_exchange_strong(none, made.get(), std::memory_order_acq_rel)) return *none;
  return *made.release();
}

void Latencies::add(const SegmentList& list, std::span<const TransportShare> shares,
                    std::chrono::nanoseconds took) {
  std::size_t transport = transports_.size();
  if (shares.size() == 1) transport = shares.front().transport;
  if (shares.empty() && list.portions.size() == 1) transport = list.portions.front().transport;
  Row& held = row(2 * transport + (list.operation == Operation::kRead ? 1 : 0));
  const std::uint64_t weight = list.bytes >= kShort ? 1 : kShortStandFor;
  held.counts[bucket_of(took)].fetch_add(weight, std::memory_order_relaxed);
  held.nanoseconds.fetch_add(weight * static_cast<std::uint64_t>(took.count()), std::memory_order_relaxed);
}

void Latencies::add_to(std::vector<Latency>& sum) const {
  sum.resize(rows_.size());
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    Latency& one = sum[i];
    if (one.transport.empty()) {
      one.transport = i / 2 < transports_.size() ? transports_[i / 2].transport->name() : "several";
      one.reads = i % 2 == 1;
    }
    const Row* const held = rows_[i].load(std::memory_order_acquire);
    if (held == nullptr) continue;
    for (std::size_t bucket = 0; bucket < Latency::kBuckets; ++bucket) {
      one.counts[bucket] += held->counts[bucket].load(std::memory_order_relaxed);
    }
    one.sum += std::chrono::nanoseconds(held->nanoseconds.load(std::memory_order_relaxed));
  }
}

}  // namespace p2p::engine
