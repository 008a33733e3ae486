// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A short link on which each TCP connection has a small part, and one on which it has what there is.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "support/capped_link.h"
#include "support/connected_peers.h"

namespace p2p::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSize = std::size_t{4} << 20;

/// "write" or "read", by the side that dialled or by the other.
class CappedTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  }

  void make(int link, int each) {
    link_.emplace(link, each);
    ASSERT_TRUE(is_ok(link_->made()));
    peers_.emplace(*link_, plan(CappedLink::kLeftAddress), plan(CappedLink::kRightAddress), kSize);
  }

  static EndpointPlan plan(const char* address) {
    EndpointPlan plan;
    plan.idle = std::chrono::seconds(2);
    plan.transport = "tcp";
    plan.address = address;
    plan.workers = kSharingWorkers;
    return plan;
  }

  /// Moves bytes without a pause until `enough`, with the most channels that there were; verified once.
  template <class Enough>
  std::size_t move_until(Enough enough) {
    const auto work = peers_->work(GetParam());
    const auto start = [&] { return peers_->start(work.by, work.operation); };
    peers_->fill(work.from, 7);
    std::vector<std::uint64_t> transfers;
    for (int i = 0; i != 4; ++i) transfers.push_back(start());
    std::size_t most = 0;
    for (std::size_t next = 0; !enough(most) && !HasFailure(); ++next) {
      std::uint64_t& oldest = transfers[next % transfers.size()];
      EXPECT_TRUE(is_ok(work.by.wait(oldest)));
      oldest = start();
      most = std::max(most, channels());
    }
    for (const std::uint64_t one : transfers) EXPECT_TRUE(is_ok(work.by.wait(one)));
    peers_->expect_filled(work.to, 7);
    return most;
  }

  std::string routes() { return peers_->routes_at(peers_->left); }

  /// That are up; "3 channels", "2 of 3 channels", "1 channel at rest".
  std::size_t channels() { return std::strtoul(routes().c_str(), nullptr, 10); }

  bool becomes(const std::string& words) {
    const auto deadline = Clock::now() + kLimit;
    while (!routes().starts_with(words)) {
      if (Clock::now() >= deadline) return false;
    }
    return true;
  }

  std::optional<CappedLink> link_;
  std::optional<ConnectedPeers> peers_;
};

TEST_P(CappedTest, StreamsBecomeMoreWhereEachIsCappedAndFewAfterARest) {
  ASSERT_NO_FATAL_FAILURE(make(0, 20));
  EXPECT_EQ(channels(), 1U);
  const auto deadline = Clock::now() + kLimit;
  const std::size_t most =
      move_until([&](std::size_t channels) { return channels >= 8 || Clock::now() > deadline; });
  EXPECT_GE(most, 8U);
  EXPECT_TRUE(becomes("1 channel at rest")) << routes();
}

// One trial fits in three seconds, and no other one follows.
TEST_P(CappedTest, AStreamThatAddsNothingIsClosedAgain) {
  ASSERT_NO_FATAL_FAILURE(make(100, 0));
  const auto end = Clock::now() + std::chrono::seconds(3);
  const std::size_t most = move_until([&](std::size_t) { return Clock::now() > end; });
  EXPECT_LE(most, 2U);
  EXPECT_TRUE(becomes("1 channel:") || becomes("1 channel at rest")) << routes();
}

INSTANTIATE_TEST_SUITE_P(By, CappedTest, ::testing::Values("write", "read_by_right"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace p2p::testing
