// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What it costs to post scattered 4 KiB descriptors over RDMA, with a provider that only counts: time for
// each of them, the provider's counting included, and doorbells.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <random>

#include "drivers/verbs/testing/fake_provider.h"
#include "engine/memory/region.h"
#include "engine/memory/remote_region.h"
#include "engine/request/segment_list.h"
#include "engine/request/stripe.h"
#include "transport/rdma/fabric.h"
#include "transport/rdma/link.h"
#include "transport/rdma/request_queue.h"
#include "transport/rdma/transport.h"

namespace p2p::rdma {
namespace {

using verbs::testing::FakeProvider;

constexpr std::size_t kDescriptors = 40'960;
constexpr std::size_t kBlock = 4096;
constexpr std::size_t kStride = 2 * kBlock;  // no two are neighbours

/// A queue that is never refused, and lists of spans for it.
class Bench {
 public:
  Bench() : memory_(kDescriptors * kStride) {
    transports_.push_back({std::make_shared<RdmaTransport>(Options{}, &provider_.library()), ""});
    table_ = std::make_shared<engine::RegionTable>(transports_, Incarnation{1}, std::chrono::seconds(1));
    region_ = table_->add(memory_.data(), memory_.size(), {}).value();
    const RegionInfo& info = region_->info();
    const RegionDescriptor descriptor{.address = reinterpret_cast<std::uint64_t>(info.base),
                                      .size = info.size,
                                      .region = info.id,
                                      .key = info.key,
                                      .incarnation = 1};
    remote_ = std::make_shared<engine::RemoteRegion>(RemoteRegionId{1}, descriptor);
    std::vector<std::unique_ptr<RemoteKey>> keys;
    keys.push_back(
        transports_[0].transport->import_region(info, region_->registration(0)->export_key()).value());
    remote_->set_ready(info, std::move(keys), {""});
    std::vector<std::size_t> order(kDescriptors);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::shuffle(order, std::mt19937(1));
    for (std::size_t i = 0; i < kDescriptors; ++i) {
      local_.push_back({info.id, memory_.data() + order[i] * kStride, kBlock});
      remotes_.push_back({RemoteRegionId{1}, descriptor.address + i * kStride, kBlock});
    }
    fabric_ = Fabric::open(provider_.library(), {}).value();
    link_ = Link::open(*fabric_, *fabric_->find("fake0:1")).value();
  }

  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  // The table and its regions hold each other until they are revoked.
  ~Bench() { (void)region_->revoke(std::chrono::steady_clock::now()); }

  std::shared_ptr<const engine::SegmentList> list() const {
    const engine::ListContext context{
        [this](RegionId id) { return table_->find(id); }, [this](RemoteRegionId) { return remote_; },
        [](const engine::Region&, const engine::RemoteRegion&) -> Result<std::size_t> { return 0; }};
    return engine::build_list(Operation::kWrite, local_, remotes_, context).value();
  }

  void post(const engine::SegmentList& list) {
    const Capabilities limits = transports_[0].transport->capabilities();
    const auto& portion = list.portions[0];
    Batch rest{.id = BatchId{1}, .segments = portion.segments, .bytes = portion.bytes};
    while (!rest.segments.empty()) {
      const Batch batch = engine::cut_batch(rest, {limits.max_batch_bytes, limits.max_batch_segments});
      while (!queue_.accept(batch)) drain();
      if (!queue_.pump(*link_)) std::abort();
    }
    while (!queue_.empty()) drain();
    queue_.take(completions_);
    completions_.clear();
  }

  FakeProvider::Counts counts() const { return provider_.counts(); }

 private:
  void drain() {
    std::array<verbs::WorkCompletion, 32> done;
    const std::size_t count = link_->queue->poll(done).value();
    for (std::size_t i = 0; i < count; ++i) {
      if ((done[i].id & Link::kGreeting) == 0) queue_.done_until(done[i].id);
    }
    if (!queue_.pump(*link_)) std::abort();
    queue_.take(completions_);
    completions_.clear();
  }

  FakeProvider provider_{{.requests = 1024, .counts_only = true}};
  std::vector<std::byte> memory_;
  engine::TransportList transports_;
  std::shared_ptr<engine::RegionTable> table_;
  std::shared_ptr<engine::Region> region_;
  std::shared_ptr<engine::RemoteRegion> remote_;
  std::vector<LocalSpan> local_;
  std::vector<RemoteSpan> remotes_;
  std::shared_ptr<const Fabric> fabric_;
  std::unique_ptr<Link> link_;
  RequestQueue queue_;
  std::vector<Completion> completions_;
};

void report(benchmark::State& state, const FakeProvider::Counts& before, const FakeProvider::Counts& after) {
  const auto descriptors = static_cast<double>(state.iterations()) * kDescriptors;
  state.counters["us_each"] =
      benchmark::Counter(descriptors / 1e6, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["descriptors_a_doorbell"] =
      descriptors / static_cast<double>(std::max<std::uint64_t>(after.doorbells - before.doorbells, 1));
}

void prepared(benchmark::State& state) {
  Bench bench;
  const auto list = bench.list();
  const auto before = bench.counts();
  for ([[maybe_unused]] auto _ : state) bench.post(*list);
  report(state, before, bench.counts());
}
BENCHMARK(prepared)->Unit(benchmark::kMillisecond);

void fresh(benchmark::State& state) {
  Bench bench;
  const auto before = bench.counts();
  for ([[maybe_unused]] auto _ : state) bench.post(*bench.list());
  report(state, before, bench.counts());
}
BENCHMARK(fresh)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace p2p::rdma

BENCHMARK_MAIN();
