// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "support/peer.h"
#include "support/transports.h"

namespace p2p::testing::cancel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMiB = std::size_t{1} << 20;
const std::size_t kSize = static_cast<std::size_t>(scaled(256, 64)) * kMiB;
constexpr std::byte kBefore{0x11};
constexpr std::byte kAfter{0xee};
constexpr std::initializer_list<ErrorCode> kEnded{ErrorCode::kPeerGone, ErrorCode::kCancelled,
                                                  ErrorCode::kNotFound, ErrorCode::kPermissionDenied};

class CancelTest : public OverTransport {
 protected:
  EndpointPlan plan() const {
    EndpointPlan plan = plan_over(GetParam());
    plan.workers = kSharingWorkers;
    return plan;
  }
};
P2P_OVER_TRANSPORTS_AND_TLS(CancelTest);

/// Done, cancelled or not.
void expect_ended(const Transfer& transfer) {
  const Status done = transfer.wait(kLimit);
  EXPECT_TRUE(transfer.done());
  if (!done) {
    EXPECT_TRUE(is_error(done, {ErrorCode::kCancelled}));
  }
}

/// Spins for longer from round to round: cancelling then meets transfers in all their states.
void let_some_move(int round) {
  const auto end = Clock::now() + std::chrono::milliseconds(3 * round);
  while (Clock::now() < end) {
  }
}

TEST_P(CancelTest, CancelledWritesLeaveBothMemoriesAlone) {
  Pair pair(plan());
  OwnRegion own(pair.endpoint, kSize);
  const PeerRegion theirs = pair.peer.region(kSize);
  const PeerRegion elsewhere = pair.peer.region(kMiB);
  const auto id = pair.connection.import_region(theirs.descriptor);
  const auto other = pair.connection.import_region(elsewhere.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  ASSERT_TRUE(is_ok(status_of(other)));
  for (int round = 0; round < 6; ++round) {
    set_all(own.pages.bytes(), kBefore);
    const Transfer write = pair.connection.write(own.span(0, kSize), {*id, theirs.descriptor.address, kSize});
    let_some_move(round);
    write.cancel();
    expect_ended(write);
    set_all(own.pages.bytes(), kAfter);
    // Nothing of the cancelled write may come behind this one.
    ASSERT_TRUE(is_ok(
        pair.connection.write(own.span(0, kMiB), {*other, elsewhere.descriptor.address, kMiB}).wait(kLimit)));
    EXPECT_TRUE(is_ok(status_of(pair.peer.call(
        fmt::format("check_only {} 0 {} {}", theirs.index, kSize, static_cast<unsigned>(kBefore))))));
    pair.peer.number(fmt::format("clear {} 0 {}", theirs.index, kSize));
    ASSERT_TRUE(is_ok(
        pair.connection.write(own.span(0, kMiB), {*other, elsewhere.descriptor.address, kMiB}).wait(kLimit)));
    EXPECT_TRUE(is_ok(status_of(pair.peer.call(fmt::format("check_clear {} 0 {}", theirs.index, kSize)))));
  }
}

TEST_P(CancelTest, CancelledReadsLeaveTheMemoryAlone) {
  Pair pair(plan());
  OwnRegion own(pair.endpoint, kSize);
  OwnRegion small(pair.endpoint, kMiB);
  const PeerRegion theirs = pair.peer.region(kSize);
  const auto id = pair.connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  for (int round = 0; round < 6; ++round) {
    const Transfer read = pair.connection.read(own.span(0, kSize), {*id, theirs.descriptor.address, kSize});
    let_some_move(round);
    read.cancel();
    expect_ended(read);
    set_all(own.pages.bytes(), kAfter);
    ASSERT_TRUE(is_ok(
        pair.connection.read(small.span(0, kMiB), {*id, theirs.descriptor.address, kMiB}).wait(kLimit)));
    EXPECT_EQ(first_not(own.pages.bytes(), kAfter), std::nullopt);
  }
}

TEST_P(CancelTest, ManyQueuedTransfersCancelAtOnce) {
  Pair pair(plan());
  OwnRegion own(pair.endpoint, kSize);
  const PeerRegion theirs = pair.peer.region(kSize);
  const auto id = pair.connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  std::vector<Transfer> writes;
  const int many = scaled(200, 800);  // of which each is smaller with a sanitizer
  for (int i = 0; i < many; ++i) {
    writes.push_back(pair.connection.write(own.span(0, kSize), {*id, theirs.descriptor.address, kSize}));
  }
  for (const Transfer& write : writes) write.cancel();
  for (const Transfer& write : writes) expect_ended(write);
  EXPECT_TRUE(is_error(writes.back().status(), {ErrorCode::kCancelled})) << "it was far back in the queue";
  EXPECT_TRUE(
      is_ok(pair.connection.write(own.span(0, kMiB), {*id, theirs.descriptor.address, kMiB}).wait(kLimit)));
}

TEST_P(CancelTest, CancelledReceiveEndsWithoutASender) {
  Pair pair(plan());
  OwnRegion own(pair.endpoint, kMiB);
  const Transfer receive = pair.connection.recv(own.span(0, kMiB));
  receive.cancel();
  EXPECT_TRUE(is_error(receive.wait(kLimit), {ErrorCode::kCancelled}));

  // Its number stays taken: the send that meets it fails, and the next two meet again.
  const PeerRegion theirs = pair.peer.region(kMiB);
  const Transfer next = pair.connection.recv(own.span(0, kMiB));
  const auto send = fmt::format("send {} {} 0 {}", pair.at_peer, theirs.index, kMiB);
  const std::uint64_t unmet = pair.peer.number(send);
  const std::uint64_t met = pair.peer.number(send);
  EXPECT_TRUE(is_error(pair.peer.wait(unmet), {ErrorCode::kCancelled}));
  EXPECT_TRUE(is_ok(pair.peer.wait(met)));
  EXPECT_TRUE(is_ok(next.wait(kLimit)));
}

TEST_P(CancelTest, EndpointsEndWithWorkInFlight) {
  for (int round = 0; round < 5; ++round) {
    Peer peer(plan());
    std::optional<Endpoint> endpoint(make_endpoint(plan()));
    Pages pages(kSize);
    std::vector<Transfer> transfers;
    Connection connection;
    {
      auto region = endpoint->register_memory(pages.data(), kSize);
      ASSERT_TRUE(is_ok(status_of(region)));
      const auto connected = endpoint->connect(peer.address(), peer.port(), kLimit);
      ASSERT_TRUE(is_ok(status_of(connected)));
      connection = *connected;
      const PeerRegion theirs = peer.region(kSize);
      const auto id = connection.import_region(theirs.descriptor);
      ASSERT_TRUE(is_ok(status_of(id)));
      for (int i = 0; i < 20; ++i) {
        const RemoteSpan remote{*id, theirs.descriptor.address, kSize};
        transfers.push_back(i % 2 == 0 ? connection.write(region->span(), remote)
                                       : connection.read(region->span(), remote));
      }
      transfers.push_back(connection.recv(region->span()));
      transfers.push_back(connection.notify(std::string(kMiB, 'n')));
      let_some_move(round);
      const auto start = Clock::now();
      endpoint.reset();
      EXPECT_LT(Clock::now() - start, 3 * plan().keepalive + kMargin);
    }
    for (const Transfer& transfer : transfers) {
      EXPECT_TRUE(transfer.done()) << "transfer " << &transfer - transfers.data() << ", round " << round;
      const Status done = transfer.status();
      if (!done) {
        EXPECT_TRUE(is_error(done, {ErrorCode::kCancelled, ErrorCode::kPeerGone}));
      }
    }
    EXPECT_FALSE(connection.status());
    set_all(pages.bytes(), kAfter);
    EXPECT_EQ(first_not(pages.bytes(), kAfter), std::nullopt);
  }
}

// The session's thread is kept, and the peer says nothing: what its end waits for comes too late.
TEST_P(CancelTest, EndpointsEndLateAndWithWorkInFlight) {
  Peer peer(plan());
  std::optional<Endpoint> endpoint(make_endpoint(plan()));
  Pages pages(kMiB);
  const auto region = endpoint->register_memory(pages.data(), kMiB);
  ASSERT_TRUE(is_ok(status_of(region)));
  const auto connection = endpoint->connect(peer.address(), peer.port(), kLimit);
  ASSERT_TRUE(is_ok(status_of(connection)));
  const PeerRegion theirs = peer.region(kMiB);
  const auto id = connection->import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  ASSERT_TRUE(is_ok(connection->write(region->span(), {*id, theirs.descriptor.address, kMiB}).wait(kLimit)));
  peer.process().stop();
  const std::vector<Transfer> transfers{connection->recv(region->span()), connection->send(region->span()),
                                        connection->notify("one")};
  std::atomic<bool> kept{false};
  transfers.back().on_done([&] {
    std::this_thread::sleep_for(2 * plan().keepalive + kMargin);  // longer than an endpoint waits
    kept = true;
  });
  endpoint.reset();
  EXPECT_TRUE(kept);
  for (const Transfer& transfer : transfers) {
    EXPECT_TRUE(transfer.done());
    EXPECT_TRUE(is_error(transfer.status(), {ErrorCode::kCancelled}));
  }
  peer.process().go_on();
}

TEST_P(CancelTest, PeersEndpointEndsWithWorkInFlight) {
  Pair pair(plan());
  OwnRegion own(pair.endpoint, kSize);
  const PeerRegion theirs = pair.peer.region(kSize);
  const auto id = pair.connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  std::vector<Transfer> writes;
  for (int i = 0; i < 20; ++i) {
    writes.push_back(pair.connection.write(own.span(0, kSize), {*id, theirs.descriptor.address, kSize}));
  }
  pair.peer.number("drop_endpoint");
  for (const Transfer& write : writes) {
    const Status done = write.wait(kLimit);
    if (!done) {
      EXPECT_TRUE(is_error(done, kEnded));
    }
  }
  EXPECT_TRUE(is_error(
      pair.connection.write(own.span(0, kMiB), {*id, theirs.descriptor.address, kMiB}).wait(kLimit), kEnded));
}

}  // namespace
}  // namespace p2p::testing::cancel
