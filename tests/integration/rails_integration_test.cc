// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Two rails, of which one goes dark or down, or becomes very slow, in the middle of whatever is under way,
// and comes back.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "support/connected_peers.h"
#include "support/rails.h"

namespace p2p::testing::rails {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSize = std::size_t{16} << 20;
constexpr int kLost = 2;  // the rail that is
constexpr const char* kSpeed = "400mbit";
constexpr const char* kSlowSpeed = "4mbit";

/// What happens to a rail, and in the middle of what.
class RailsTest : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
    rails_.emplace(std::vector<std::string>{kSpeed, kSpeed});
    ASSERT_TRUE(is_ok(rails_->made()));
    peers_.emplace(*rails_, plan(Rails::kLeftAddress), plan(Rails::kRightAddress), kSize);
  }

  EndpointPlan plan(const char* address) const {
    EndpointPlan plan;
    plan.transport = "tcp";
    plan.address = address;
    plan.streams = 1;
    plan.keepalive = keepalive_;
    plan.workers = kSharingWorkers;  // both rails write the same memory, one after the other
    plan.interfaces = rails_->interfaces();
    return plan;
  }

  void set_lost(bool lost) {
    const std::string loss = std::get<0>(GetParam());
    if (loss == "dark") {
      rails_->set_dark(kLost, lost);
    } else if (loss == "slow") {
      rails_->set_speed(kLost, lost ? kSlowSpeed : kSpeed);
    } else {
      rails_->set_down(kLost, lost);
    }
    ASSERT_TRUE(is_ok(rails_->made()));
  }

  std::string operation() const { return std::get<1>(GetParam()); }

  /// Of all that there is: the left side's transfer.
  std::uint64_t start() {
    if (operation() == "send") {
      receives_.push_back(peers_->right.number(
          fmt::format("recv {} {} 0 {}", peers_->at_right, peers_->theirs.index, kSize)));
      return peers_->left.number(
          fmt::format("send {} {} 0 {}", peers_->connection, peers_->own.index, kSize));
    }
    return peers_->start(peers_->left, operation());
  }

  void fill_source(std::uint64_t seed) {
    peers_->fill(operation() == "read" ? peers_->right : peers_->left, seed);
  }

  void expect_moved(std::uint64_t seed) {
    for (const std::uint64_t receive : receives_) EXPECT_TRUE(is_ok(peers_->right.wait(receive)));
    receives_.clear();
    for (Peer* side : {&peers_->left, &peers_->right}) peers_->expect_filled(*side, seed);
  }

  void expect_channels(const char* wanted, std::chrono::milliseconds limit) {
    const auto deadline = Clock::now() + limit;
    std::string seen;
    do {
      seen = peers_->routes_at(peers_->left);
    } while (!seen.starts_with(wanted) && Clock::now() < deadline);
    EXPECT_TRUE(seen.starts_with(wanted)) << seen;
  }

  std::chrono::milliseconds keepalive_ = EndpointPlan{}.keepalive;
  std::optional<Rails> rails_;
  std::optional<ConnectedPeers> peers_;
  std::vector<std::uint64_t> receives_;
};

// Whoever waits: also a side that only reads, and sends nothing that could stay unanswered.
TEST_P(RailsTest, NothingFailsWhileOneIsLostAndItCarriesAgainOnceItIsBack) {
  for (const std::uint64_t seed : {1, 2}) {
    SCOPED_TRACE(seed);
    fill_source(seed);
    std::vector<std::uint64_t> transfers;
    for (int i = 0; i != 4; ++i) transfers.push_back(start());
    // All four take more than half a second, so that it is lost in their middle.
    EXPECT_TRUE(is_ok(peers_->left.wait(transfers.front())));
    ASSERT_NO_FATAL_FAILURE(set_lost(true));
    const auto lost_at = Clock::now();
    for (const std::uint64_t one : transfers) EXPECT_TRUE(is_ok(peers_->left.wait(one)));
    EXPECT_LT(Clock::now() - lost_at, EndpointPlan{}.keepalive + std::chrono::seconds(3) + kWideMargin);
    expect_moved(seed);
    expect_channels("1 of 2 channels", EndpointPlan{}.keepalive + std::chrono::seconds(2) + kWideMargin);
    ASSERT_NO_FATAL_FAILURE(set_lost(false));
    expect_channels("2 channels", kLimit);
    const std::uint64_t before = rails_->carried(kLost);
    fill_source(seed + 10);
    const auto carries = [&] { return rails_->carried(kLost) - before > kSize / 4; };
    const auto deadline = Clock::now() + kLimit;
    do {
      EXPECT_TRUE(is_ok(peers_->left.wait(start())));
    } while (!carries() && Clock::now() < deadline);
    EXPECT_TRUE(carries());
    expect_moved(seed + 10);
  }
}

// Nobody is taken for dead while it lasts, nor does the kernel ask a rail at rest, as it does after a third.
class StalledRailTest : public RailsTest {
 protected:
  StalledRailTest() { keepalive_ = 6 * kLimit; }
};

TEST_P(StalledRailTest, TheOtherSoonCarriesWhatItHad) {
  fill_source(1);
  std::vector<std::uint64_t> transfers;
  for (int i = 0; i != 4; ++i) transfers.push_back(start());
  EXPECT_TRUE(is_ok(peers_->left.wait(transfers.front())));
  ASSERT_NO_FATAL_FAILURE(set_lost(true));
  const auto lost_at = Clock::now();
  for (const std::uint64_t one : transfers) EXPECT_TRUE(is_ok(peers_->left.wait(one)));
  EXPECT_LT(Clock::now() - lost_at, kLimit) << "a sixth of what a keepalive takes here";
  expect_moved(1);
  ASSERT_NO_FATAL_FAILURE(set_lost(false));
  expect_channels("2 channels", kLimit);
}

// What the other had was done, and it at rest, before anybody could see that this one stands still.
TEST_P(StalledRailTest, TheOtherIsAskedIfItIsAtRest) {
  constexpr std::uint64_t kMoved = std::uint64_t{1} << 20;
  fill_source(1);
  EXPECT_TRUE(is_ok(peers_->left.wait(start())));
  ASSERT_NO_FATAL_FAILURE(set_lost(true));
  fill_source(2);
  std::vector<std::uint64_t> transfers;
  for (std::uint64_t at = 0; at != kMoved; at += kMoved / 16) {
    transfers.push_back(peers_->start(peers_->left, operation(), at, kMoved / 16));
  }
  for (const std::uint64_t one : transfers) EXPECT_TRUE(is_ok(peers_->left.wait(one)));
  peers_->expect_filled(operation() == "read" ? peers_->left : peers_->right, 2, kMoved);
  ASSERT_NO_FATAL_FAILURE(set_lost(false));
  expect_channels("2 channels", kLimit);
}

INSTANTIATE_TEST_SUITE_P(Stalled, StalledRailTest,
                         ::testing::Combine(::testing::Values("dark", "slow"),
                                            ::testing::Values("read", "write")),
                         [](const auto& each) {
                           return fmt::format("{}_{}", std::get<0>(each.param), std::get<1>(each.param));
                         });

INSTANTIATE_TEST_SUITE_P(Lost, RailsTest,
                         ::testing::Combine(::testing::Values("dark", "down"),
                                            ::testing::Values("read", "write", "send", "write_list")),
                         [](const auto& each) {
                           return fmt::format("{}_{}", std::get<0>(each.param), std::get<1>(each.param));
                         });

}  // namespace
}  // namespace p2p::testing::rails
