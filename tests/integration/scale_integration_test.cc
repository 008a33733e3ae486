// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a peer costs an endpoint that has many of them. The peers are connections of one other process. How
// many: P2P_SCALE_PEERS, 100 if unset; scripts/scale.sh sets it. Figures are printed; what is judged is
// behaviour, and counts that do not hang on the machine's speed.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/eventually.h"
#include "support/peer.h"

namespace p2p::testing::scale {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Microseconds = std::chrono::duration<double, std::micro>;

constexpr std::size_t kBlock = std::size_t{64} << 10;

/// The session alone, once its streams rest.
constexpr long kFilesOfAPeer = 1;

std::size_t peers() {
  const char* set =
      std::getenv("P2P_SCALE_PEERS");  // NOLINT(concurrency-mt-unsafe): nothing here calls setenv
  return set == nullptr ? 100 : std::strtoul(set, nullptr, 10);
}

double microseconds_since(Clock::time_point start) { return Microseconds(Clock::now() - start).count(); }

void say(const char* what, double value, const char* unit) {
  ::testing::Test::RecordProperty(what, fmt::format("{:.2f} {}", value, unit));
  fmt::print("{:<44}{:>10.2f} {}\n", what, value, unit);
}

bool at_rest(const Connection& one) {
  return one.routes().front().detail.find("at rest") != std::string::npos;
}

double quantile(std::vector<double> values, double at) {
  std::sort(values.begin(), values.end());
  return values.at(static_cast<std::size_t>(at * static_cast<double>(values.size() - 1)));
}

class Scale : public ::testing::Test {
 protected:
  void SetUp() override {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);  // the peer process's, too
    if (limit.rlim_max < peers() * 10 + 400) GTEST_SKIP() << limit.rlim_max << " descriptors are too few";
    hub_.emplace(plan());
    endpoint_.emplace(make_endpoint(plan()));
  }

  static EndpointPlan plan() {
    return {.transport = "tcp", .keepalive = milliseconds(10'000), .streams = 1, .idle = milliseconds(1500)};
  }

  /// `count` at once; sets how long that took.
  std::vector<Connection> connect(std::size_t count) {
    std::vector<Connection> made;
    made.reserve(count);
    const auto start = Clock::now();
    for (std::size_t i = 0; i != count; ++i) {
      made.push_back(endpoint_->connect_async(hub_->address(), hub_->port(), kLimit));
    }
    for (Connection& one : made) EXPECT_TRUE(is_ok(one.wait_open(kLimit)));
    connected_in_ = microseconds_since(start);
    for (std::size_t i = 0; i != count && !HasFailure(); ++i) hub_->accept();
    return made;
  }

  void rest(const std::vector<Connection>& all) {
    EXPECT_TRUE(eventually([&] { return std::all_of(all.begin(), all.end(), at_rest); }));
  }

  Usage there() { return usage_of(hub_->process().pid()); }

  /// Where each of the peers is to write.
  std::vector<RemoteSpan> import(const std::vector<Connection>& all, const PeerRegion& region) {
    std::vector<RemoteSpan> spans;
    for (std::size_t i = 0; i != all.size(); ++i) {
      const auto id = all[i].import_region(region.descriptor);
      EXPECT_TRUE(is_ok(status_of(id)));
      if (!id) break;
      spans.push_back({*id, region.descriptor.address + i * kBlock, kBlock});
    }
    return spans;
  }

  std::optional<Peer> hub_;
  std::optional<Endpoint> endpoint_;
  double connected_in_ = 0;
};

TEST_F(Scale, ManyPeersAtOnceAndAtRest) {
  const std::vector<Connection> first = connect(10);  // what is made once is made
  rest(first);
  const Usage before = there();
  const Usage own_before = usage_of(::getpid());
  const std::vector<Connection> all = connect(peers());
  const auto count = static_cast<double>(peers());
  say("all connected within", connected_in_ / 1000, "ms");
  EXPECT_EQ(there().threads, before.threads);
  rest(all);
  const auto most = static_cast<long>(peers()) * kFilesOfAPeer;
  EXPECT_TRUE(eventually([&] { return there().open_files - before.open_files <= most; }));
  EXPECT_TRUE(eventually([&] { return usage_of(::getpid()).open_files - own_before.open_files <= most; }));
  const Usage after = there();
  const Usage own_after = usage_of(::getpid());
  const auto each = [&](long more) { return static_cast<double>(more) / count; };
  say("descriptors of an idle peer, dialled side", each(after.open_files - before.open_files), "");
  say("descriptors of an idle peer, dialling side", each(own_after.open_files - own_before.open_files), "");
  say("memory of an idle peer, dialled side", each(after.resident_bytes - before.resident_bytes) / 1024,
      "KiB");
  say("memory of an idle peer, dialling side",
      each(own_after.resident_bytes - own_before.resident_bytes) / 1024, "KiB");
  EXPECT_LE(after.open_files - before.open_files, most);
  EXPECT_LE(own_after.open_files - own_before.open_files, most);

  const auto start = Clock::now();
  std::this_thread::sleep_for(milliseconds(2000));  // rest is what is measured
  const Microseconds spent = there().cpu_time - after.cpu_time;
  say("of a core at rest", 100 * spent.count() / microseconds_since(start), "%");
  for (const Connection& one : all) EXPECT_TRUE(is_ok(one.status()));

  for (const Connection& one : all) EXPECT_TRUE(is_ok(one.close(kLimit)));
  EXPECT_TRUE(eventually([&] { return there().open_files <= before.open_files; }))
      << "each gives back what it took";
}

TEST_F(Scale, TheFirstTransferAfterARest) {
  const std::vector<Connection> all = connect(10);
  OwnRegion own(*endpoint_, kBlock);
  const std::vector<RemoteSpan> spans = import(all, hub_->region(10 * kBlock));
  ASSERT_EQ(spans.size(), all.size());
  std::vector<double> first;
  std::vector<double> later;
  for (int round = 0; round != 2; ++round) {
    rest(all);
    for (std::size_t i = 0; i != all.size(); ++i) {
      for (auto* const times : {&first, &later}) {
        const auto start = Clock::now();
        EXPECT_TRUE(is_ok(all[i].write(own.span(0, 8), {spans[i].region, spans[i].address, 8}).wait(kLimit)));
        times->push_back(microseconds_since(start));
      }
    }
  }
  say("write of 8 bytes, first after a rest", quantile(first, 0.5), "us, median");
  say("write of 8 bytes, the next one", quantile(later, 0.5), "us, median");
}

TEST_F(Scale, RoundsToEachPeer) {
  const std::vector<Connection> all = connect(peers());
  OwnRegion own(*endpoint_, kBlock);
  fill(own.pages.bytes(), 1);
  const PeerRegion theirs = hub_->region(peers() * kBlock);
  const std::vector<RemoteSpan> spans = import(all, theirs);
  ASSERT_EQ(spans.size(), all.size());
  const auto round = [&](bool to_each) {
    const auto start = Clock::now();
    std::vector<Transfer> transfers;
    transfers.reserve(all.size());
    for (std::size_t i = 0; i != all.size(); ++i) {
      const std::size_t to = to_each ? i : 0;
      transfers.push_back(all[to].write(own.span(0, kBlock), {spans[to].region, spans[i].address, kBlock}));
    }
    for (const Transfer& one : transfers) EXPECT_TRUE(is_ok(one.wait(kLimit)));
    return static_cast<double>(all.size() * kBlock) / microseconds_since(start) / 1000;
  };
  say("64 KiB to each, first round", round(true), "GB/s");
  std::vector<double> each;
  std::vector<double> one;
  for (int i = 0; i != 5; ++i) {
    each.push_back(round(true));
    one.push_back(round(false));
  }
  say("64 KiB to each, later rounds", quantile(each, 0.5), "GB/s");
  say("as many to one peer", quantile(one, 0.5), "GB/s");
  for (std::size_t i = 0; i != all.size(); ++i) {
    const auto check = fmt::format("check {} {} {} 1", theirs.index, i * kBlock, kBlock);
    ASSERT_TRUE(is_ok(status_of(hub_->call(check)))) << "peer " << i;
  }
}

// One peer with a long queue does not keep others from their turn.
TEST_F(Scale, ALongQueueToOnePeerLeavesOthersTheirTurn) {
  const std::vector<Connection> all = connect(peers());
  OwnRegion own(*endpoint_, kBlock);
  const std::vector<RemoteSpan> spans = import(all, hub_->region(peers() * kBlock));
  ASSERT_EQ(spans.size(), all.size());
  const auto write = [&](std::size_t to) { return all[to].write(own.span(0, kBlock), spans[to]); };
  const auto others = [&] {
    std::mutex mutex;
    std::vector<double> took;
    std::vector<Transfer> transfers;
    for (std::size_t i = 1; i != all.size(); ++i) {
      const auto start = Clock::now();
      transfers.push_back(write(i));
      transfers.back().on_done([&mutex, &took, start] {
        const std::lock_guard lock(mutex);
        took.push_back(microseconds_since(start));
      });
    }
    for (const Transfer& one : transfers) EXPECT_TRUE(is_ok(one.wait(kLimit)));
    EXPECT_TRUE(eventually([&] {
      const std::lock_guard lock(mutex);
      return took.size() == transfers.size();
    }));
    return quantile(took, 0.99);
  };
  others();  // the first time is for what is made once
  say("one to each of the others, alone", others() / 1000, "ms, p99");
  std::vector<Transfer> queue;
  for (std::size_t i = 0; i != peers() * 10; ++i) queue.push_back(write(0));
  say("beside a peer with ten times as many queued", others() / 1000, "ms, p99");
  const bool left = !queue.back().done();
  say("of the queue was left then", left ? 1 : 0, "");
  for (const Transfer& one : queue) EXPECT_TRUE(is_ok(one.wait(kLimit)));
}

// A hundred for each peer: 100 000 with 1000 peers.
TEST_F(Scale, ManyRegions) {
  constexpr std::size_t kSize = 4096;
  const std::size_t count = peers() * 100;
  Endpoint owner = make_endpoint(plan());
  auto made = endpoint_->connect("127.0.0.1", owner.port(), kLimit);
  ASSERT_TRUE(is_ok(status_of(made)));
  auto accepted = owner.accept(kLimit);
  ASSERT_TRUE(is_ok(status_of(accepted)));
  Pages pages(kSize);
  std::vector<MemoryRegion> regions;
  std::vector<RegionDescriptor> descriptors;
  std::vector<RemoteRegionId> imported;
  regions.reserve(count);
  descriptors.reserve(count);
  imported.reserve(count);
  const auto timed = [&](const char* what, const auto& one) {
    const auto start = Clock::now();
    for (std::size_t i = 0; i != count && !HasFailure(); ++i) one(i);
    say(what, microseconds_since(start) / static_cast<double>(count), "us");
  };
  timed("a region registered", [&](std::size_t) {
    auto region = owner.register_memory(pages.data(), kSize);
    if (!region) return ADD_FAILURE() << region.error().message, void();
    regions.push_back(std::move(*region));
  });
  timed("its descriptor", [&](std::size_t i) { descriptors.push_back(regions[i].descriptor()); });
  timed("imported", [&](std::size_t i) {
    const auto id = made->import_region(descriptors[i]);
    if (!id) return ADD_FAILURE() << id.error().message, void();
    imported.push_back(*id);
  });
  ASSERT_FALSE(HasFailure());
  OwnRegion own(*endpoint_, kSize);
  fill(own.pages.bytes(), 5);
  for (const std::size_t i : {std::size_t{0}, count / 2, count - 1}) {
    std::memset(pages.data(), 0, kSize);
    const RemoteSpan there{imported[i], descriptors[i].address, kSize};
    ASSERT_TRUE(is_ok(made->write(own.span(0, kSize), there).wait(kLimit)));
    EXPECT_EQ(difference(pages.bytes(), 5), std::nullopt);
  }
  timed("released", [&](std::size_t) { regions.pop_back(); });
}

}  // namespace
}  // namespace p2p::testing::scale
