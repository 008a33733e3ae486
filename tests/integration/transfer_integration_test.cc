// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "support/hex.h"
#include "support/peer.h"
#include "support/transports.h"

namespace p2p::testing::transfer {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class TransferTest : public OverTransport {
 protected:
  EndpointPlan plan() const { return plan_over(GetParam()); }
};
P2P_OVER_TRANSPORTS_AND_TLS(TransferTest);

RemoteRegionId import(const Connection& connection, const PeerRegion& region) {
  const auto id = connection.import_region(region.descriptor);
  EXPECT_TRUE(is_ok(status_of(id)));
  return id ? *id : RemoteRegionId{};
}

TEST_P(TransferTest, RouteIsTheTransportAskedFor) {
  const Pair pair(plan());
  const auto routes = pair.connection.routes();
  ASSERT_FALSE(routes.empty());
  EXPECT_EQ(routes[0].transport, plan().transport);
  EXPECT_FALSE(routes[0].reason.empty());
}

TEST_P(TransferTest, WriteLandsExactlyWhereItShould) {
  Pair pair(plan());
  for (const std::size_t size : {std::size_t{1}, std::size_t{4095}, 3 * kMiB + 17}) {
    OwnRegion own(pair.endpoint, size);
    const PeerRegion theirs = pair.peer.region(size + 200);
    fill(own.pages.bytes(), size);
    const RemoteSpan to{import(pair.connection, theirs), theirs.descriptor.address + 100, size};
    EXPECT_TRUE(is_ok(pair.connection.write(own.span(0, size), to).wait(kLimit)));
    EXPECT_TRUE(
        is_ok(status_of(pair.peer.call(fmt::format("check {} 100 {} {}", theirs.index, size, size)))));
    EXPECT_TRUE(is_ok(status_of(pair.peer.call(fmt::format("check_clear {} 0 100", theirs.index)))));
    EXPECT_TRUE(
        is_ok(status_of(pair.peer.call(fmt::format("check_clear {} {} 100", theirs.index, size + 100)))));
  }
}

// Machines differ in cores and links, and so in what they would open by themselves.
TEST_P(TransferTest, SidesThatWantDifferentNumbersOfStreamsTakeTheSmaller) {
  for (const auto& [here, there] : {std::pair(1U, 3U), std::pair(3U, 1U)}) {
    EndpointPlan own_plan = plan();
    EndpointPlan peer_plan = plan();
    own_plan.streams = here;
    peer_plan.streams = there;
    Pair pair(own_plan, peer_plan);
    const std::size_t size = 3 * kMiB + 17;
    OwnRegion own(pair.endpoint, size);
    const PeerRegion theirs = pair.peer.region(size);
    fill(own.pages.bytes(), here);
    const RemoteSpan to{import(pair.connection, theirs), theirs.descriptor.address, size};
    EXPECT_TRUE(is_ok(pair.connection.write(own.span(0, size), to).wait(kLimit)));
    EXPECT_TRUE(is_ok(status_of(pair.peer.call(fmt::format("check {} 0 {} {}", theirs.index, size, here)))));
    EXPECT_EQ(pair.connection.routes()[0].transport, plan().transport);
  }
}

// The handle of CUDA's default stream: without CUDA nothing says when it is through.
TEST_P(TransferTest, AStreamThatCannotBeWaitedForFailsItsTransferAlone) {
  Pair pair(plan());
  OwnRegion own(pair.endpoint, 100);
  const PeerRegion theirs = pair.peer.region(100);
  fill(own.pages.bytes(), 7);
  const RemoteSpan to{import(pair.connection, theirs), theirs.descriptor.address, 100};
  const PostOptions behind{.cuda_stream = reinterpret_cast<void*>(1)};
  const auto prepared = pair.connection.prepare_write(std::vector{own.span(0, 100)}, std::vector{to});
  ASSERT_TRUE(is_ok(status_of(prepared)));
  for (const bool is_prepared : {false, true}) {
    const Transfer write =
        is_prepared ? prepared->post(behind) : pair.connection.write(own.span(0, 100), to, behind);
    const Status status = write.wait(kLimit);
    if (status) GTEST_SKIP() << "there is CUDA here: it could be waited for";
    EXPECT_TRUE(is_error(status, {ErrorCode::kUnavailable}));
    EXPECT_THAT(status.error().message, ::testing::HasSubstr("behind CUDA stream 0x1"));
    EXPECT_TRUE(is_ok(status_of(pair.peer.call(fmt::format("check_clear {} 0 100", theirs.index)))));
  }
  EXPECT_TRUE(is_ok(pair.connection.write(own.span(0, 100), to).wait(kLimit)));
}

TEST_P(TransferTest, ReadTakesExactlyWhatItShould) {
  Pair pair(plan());
  for (const std::size_t size : {std::size_t{1}, std::size_t{4097}, 5 * kMiB + 3}) {
    OwnRegion own(pair.endpoint, size + 200);
    const PeerRegion theirs = pair.peer.region(size);
    pair.peer.number(fmt::format("fill {} 0 {} {}", theirs.index, size, size));
    const RemoteSpan from{import(pair.connection, theirs), theirs.descriptor.address, size};
    EXPECT_TRUE(is_ok(pair.connection.read(own.span(100, size), from).wait(kLimit)));
    EXPECT_EQ(difference(own.part(100, size), size), std::nullopt);
    EXPECT_EQ(first_not(own.part(0, 100), std::byte{}), std::nullopt);
    EXPECT_EQ(first_not(own.part(size + 100, 100), std::byte{}), std::nullopt);
  }
}

TEST_P(TransferTest, BothSidesMoveBothWaysAtOnce) {
  Pair pair(plan());
  const std::size_t size = 8 * kMiB;
  OwnRegion own(pair.endpoint, 4 * size);
  const PeerRegion theirs = pair.peer.region(4 * size);
  const std::uint64_t mine_there =
      pair.peer.number(fmt::format("import {} {}", pair.at_peer, to_hex(own.region.descriptor())));
  fill(own.part(0, size), 1);
  fill(own.part(size, size), 2);
  pair.peer.number(fmt::format("fill {} 0 {} 3", theirs.index, size));
  pair.peer.number(fmt::format("fill {} {} {} 4", theirs.index, size, size));

  // Quarters: mine to write, theirs to read from me; where theirs land at my side.
  const auto base = reinterpret_cast<std::uintptr_t>(own.pages.data());
  const RemoteRegionId id = import(pair.connection, theirs);
  const std::uint64_t there = theirs.descriptor.address;
  const Transfer write = pair.connection.write(own.span(0, size), {id, there + 2 * size, size});
  const std::uint64_t their_write = pair.peer.number(
      fmt::format("write {} {} 0 {} {} {}", pair.at_peer, theirs.index, size, mine_there, base + 2 * size));
  const Transfer read = pair.connection.read(own.span(3 * size, size), {id, there + size, size});
  const std::uint64_t their_read = pair.peer.number(fmt::format(
      "read {} {} {} {} {} {}", pair.at_peer, theirs.index, 3 * size, size, mine_there, base + size));
  EXPECT_TRUE(is_ok(write.wait(kLimit)));
  EXPECT_TRUE(is_ok(read.wait(kLimit)));
  EXPECT_TRUE(is_ok(pair.peer.wait(their_write)));
  EXPECT_TRUE(is_ok(pair.peer.wait(their_read)));
  EXPECT_EQ(difference(own.part(2 * size, size), 3), std::nullopt);
  EXPECT_EQ(difference(own.part(3 * size, size), 4), std::nullopt);
  const auto check = [&](std::size_t at, unsigned seed) {
    return is_ok(status_of(pair.peer.call(fmt::format("check {} {} {} {}", theirs.index, at, size, seed))));
  };
  EXPECT_TRUE(check(2 * size, 1));
  EXPECT_TRUE(check(3 * size, 2));
}

TEST_P(TransferTest, ListsOfAnyLength) {
  Pair pair(plan());
  constexpr std::size_t kBlock = 48;
  const std::size_t most = static_cast<std::size_t>(scaled(100'000, 20'000));
  OwnRegion own(pair.endpoint, most * kBlock);
  OwnRegion back(pair.endpoint, most * kBlock);
  const PeerRegion theirs = pair.peer.region(most * kBlock);
  const RemoteRegionId id = import(pair.connection, theirs);
  for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{1025}, most}) {
    fill(own.pages.bytes(), count);
    std::vector<LocalSpan> from, into;
    std::vector<RemoteSpan> remote;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t scattered = i * 7919 % count;  // 7919 is prime and divides no count
      from.push_back(own.span(i * kBlock, kBlock));
      into.push_back(back.span(i * kBlock, kBlock));
      remote.push_back({id, theirs.descriptor.address + scattered * kBlock, kBlock});
    }
    EXPECT_TRUE(is_ok(pair.connection.write(from, remote).wait(kLimit))) << count;
    EXPECT_TRUE(is_ok(pair.connection.read(into, remote).wait(kLimit))) << count;
    EXPECT_EQ(difference(back.part(0, count * kBlock), count), std::nullopt) << count;
  }
}

TEST_P(TransferTest, EightThreadsShareAConnection) {
  Pair pair(plan());
  constexpr std::size_t kThreads = 8;
  constexpr std::size_t kShare = 256 << 10;
  const int rounds = scaled(100, 10);
  OwnRegion own(pair.endpoint, 2 * kThreads * kShare);
  const PeerRegion theirs = pair.peer.region(kThreads * kShare);
  const RemoteRegionId id = import(pair.connection, theirs);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const LocalSpan from = own.span(2 * t * kShare, kShare);
      const LocalSpan into = own.span((2 * t + 1) * kShare, kShare);
      const RemoteSpan there{id, theirs.descriptor.address + t * kShare, kShare};
      for (int round = 0; round < rounds; ++round) {
        const std::uint64_t seed = t * 1000 + static_cast<std::uint64_t>(round);
        fill({from.data, from.size}, seed);
        const bool moved = pair.connection.write(from, there).wait(kLimit).has_value() &&
                           pair.connection.read(into, there).wait(kLimit).has_value();
        if (!moved || difference({into.data, into.size}, seed)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(TransferTest, PreparedListsArePostedAgainAndAtOnce) {
  Pair pair(plan());
  constexpr std::size_t kBlocks = 500;
  constexpr std::size_t kBlock = 1000;
  OwnRegion own(pair.endpoint, kBlocks * kBlock);
  OwnRegion back(pair.endpoint, kBlocks * kBlock);
  const PeerRegion theirs = pair.peer.region(2 * kBlocks * kBlock);
  const RemoteRegionId id = import(pair.connection, theirs);
  std::vector<LocalSpan> from, into;
  std::vector<RemoteSpan> remote;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    from.push_back(own.span(i * kBlock, kBlock));
    into.push_back(back.span(i * kBlock, kBlock));
    remote.push_back({id, theirs.descriptor.address + 2 * i * kBlock, kBlock});
  }
  const auto write = pair.connection.prepare_write(from, remote);
  const auto read = pair.connection.prepare_read(into, remote);
  ASSERT_TRUE(is_ok(status_of(write)));
  ASSERT_TRUE(is_ok(status_of(read)));
  EXPECT_EQ(write->bytes(), kBlocks * kBlock);
  for (std::uint64_t round = 1; round <= 20; ++round) {
    fill(own.pages.bytes(), round);
    std::vector<Transfer> posted;
    for (int i = 0; i < 8; ++i) posted.push_back(write->post());
    for (const Transfer& transfer : posted) ASSERT_TRUE(is_ok(transfer.wait(kLimit)));
    ASSERT_TRUE(is_ok(read->post().wait(kLimit)));
    ASSERT_EQ(difference(back.pages.bytes(), round), std::nullopt);
  }
}

TEST_P(TransferTest, NeighboursOnBothSidesAreMerged) {
  Pair pair(plan());
  OwnRegion own(pair.endpoint, 64 * 1024);
  const PeerRegion theirs = pair.peer.region(64 * 1024);
  const RemoteRegionId id = import(pair.connection, theirs);
  std::vector<LocalSpan> local;
  std::vector<RemoteSpan> remote;
  for (std::size_t i = 0; i < 64; ++i) {
    local.push_back(own.span(i * 1024, 1024));
    remote.push_back({id, theirs.descriptor.address + i * 1024, 1024});
  }
  const auto prepared = pair.connection.prepare_write(local, remote);
  ASSERT_TRUE(is_ok(status_of(prepared)));
  // Merged when the list is built: once the owner has told of its region, so that the first post need not
  // wait.
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  while (prepared->segments() != 1 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(prepared->segments(), 1u);
  ASSERT_TRUE(is_ok(prepared->post().wait(kLimit)));
}

TEST_P(TransferTest, WrongArgumentsAreTheTransfersOutcome) {
  Pair pair(plan());
  OwnRegion own(pair.endpoint, 4096);
  const PeerRegion theirs = pair.peer.region(4096);
  const RemoteRegionId id = import(pair.connection, theirs);
  const std::uint64_t there = theirs.descriptor.address;
  const auto write = [&](const LocalSpan& local, const RemoteSpan& remote) {
    return pair.connection.write(local, remote).wait(kLimit);
  };
  EXPECT_TRUE(is_error(write(own.span(0, 100), {id, there, 99}), {ErrorCode::kInvalidArgument}));
  EXPECT_TRUE(is_error(write(own.span(4000, 97), {id, there, 97}), {ErrorCode::kOutOfRange}));
  EXPECT_TRUE(is_error(write(own.span(0, 1), {RemoteRegionId{4711}, there, 1}),
                       {ErrorCode::kNotFound, ErrorCode::kInvalidArgument}));
  LocalSpan unknown = own.span(0, 1);
  unknown.region = RegionId{4711};
  EXPECT_TRUE(is_error(write(unknown, {id, there, 1}), {ErrorCode::kNotFound, ErrorCode::kInvalidArgument}));
  EXPECT_TRUE(is_ok(write(own.span(0, 4096), {id, there, 4096}))) << "the connection must be unharmed";
}

}  // namespace
}  // namespace p2p::testing::transfer
