// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "support/peer.h"
#include "support/transports.h"

namespace p2p::testing::priority {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kBulk = 16 * kMiB;

/// One region here and one at the peer for each class, and writes between them.
class PriorityTest : public OverTransport {
 protected:
  struct Class {
    Priority priority;
    OwnRegion own;
    PeerRegion theirs;
    RemoteRegionId id;
  };

  Class make(Priority priority, std::size_t size) {
    OwnRegion own(pair_.endpoint, size);
    const PeerRegion theirs = pair_.peer.region(size);
    fill(own.pages.bytes(), size);
    const auto id = pair_.connection.import_region(theirs.descriptor);
    EXPECT_TRUE(is_ok(status_of(id)));
    return {priority, std::move(own), theirs, id.value_or(RemoteRegionId{})};
  }

  Transfer write(const Class& one, std::uint64_t rate = 0) const {
    const std::size_t size = one.own.pages.bytes().size();
    return pair_.connection.write(one.own.span(0, size), {one.id, one.theirs.descriptor.address, size},
                                  {.priority = one.priority, .rate = rate});
  }

  void expect_arrived(const Class& one) {
    const std::size_t size = one.own.pages.bytes().size();
    EXPECT_TRUE(
        is_ok(status_of(pair_.peer.call(fmt::format("check {} 0 {} {}", one.theirs.index, size, size)))));
  }

  Pair pair_{plan_over(GetParam())};
};
P2P_OVER_TRANSPORTS_AND_TLS(PriorityTest);

TEST_P(PriorityTest, ThreeClassesAtOnceAllArrive) {
  std::vector<Class> classes;
  classes.push_back(make(Priority::kLow, kBulk));
  classes.push_back(make(Priority::kNormal, 3 * kMiB + 17));
  classes.push_back(make(Priority::kHigh, kMiB + 5));
  for (int round = 0; round != 3; ++round) {
    std::vector<Transfer> transfers;
    for (const Class& one : classes) transfers.push_back(write(one));
    transfers.push_back(write(classes[2]));
    for (const Transfer& transfer : transfers) EXPECT_TRUE(is_ok(transfer.wait(kLimit)));
  }
  for (const Class& one : classes) expect_arrived(one);
}

TEST_P(PriorityTest, ARateIsKept) {
  const Class one = make(Priority::kNormal, 2 * kMiB);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(is_ok(write(one, 10 * kMiB).wait(kLimit)));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(180));
  expect_arrived(one);
  const Transfer slow = write(one, 1);
  EXPECT_TRUE(is_ok(write(one).wait(kLimit)));  // is not held up
  EXPECT_FALSE(slow.done());
  slow.cancel();
  EXPECT_TRUE(is_error(slow.wait(kLimit), {ErrorCode::kCancelled}));
}

}  // namespace
}  // namespace p2p::testing::priority
