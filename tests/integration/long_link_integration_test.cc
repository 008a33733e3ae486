// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Two hosts with a link between them that is long and loses, doubles and reorders packets.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/connected_peers.h"
#include "support/long_link.h"

namespace p2p::testing {
namespace {

constexpr std::size_t kSize = std::size_t{8} << 20;

bool kernel_has(const std::string& control) {
  std::ifstream file("/proc/sys/net/ipv4/tcp_available_congestion_control");
  const std::vector<std::string> all{std::istream_iterator<std::string>(file), {}};
  return std::ranges::find(all, control) != all.end();
}

class LongLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = LongLink::missing(); !missing.empty()) GTEST_SKIP() << missing;
  }

  void make(const std::string& profile, const std::string& control = "cubic") {
    link_.emplace(1, profile);
    ASSERT_TRUE(is_ok(link_->set_congestion_control(control)));
    ASSERT_TRUE(is_ok(link_->made()));
    peers_.emplace(*link_, plan(LongLink::kLeftAddress), plan(LongLink::kRightAddress), kSize);
  }

  EndpointPlan plan(const char* address) const {
    EndpointPlan plan;
    plan.streams = streams_;
    // Streams do not rest between two looks at them, also where who looks has to wait for its turn.
    plan.idle = std::chrono::seconds(4);
    plan.keepalive = std::chrono::seconds(6);
    plan.transport = "tcp";
    plan.address = address;
    plan.workers = kSharingWorkers;
    return plan;
  }

  /// Moves all that there is; "write" or "read" by the left side, or by the right one, which was dialled.
  void move(const std::string& words) {
    const auto work = peers_->work(words);
    EXPECT_TRUE(is_ok(work.by.wait(peers_->start(work.by, work.operation))));
  }

  void move_filled(const std::string& words, std::uint64_t seed) {
    const auto work = peers_->work(words);
    peers_->fill(work.from, seed);
    move(words);
    peers_->expect_filled(work.to, seed);
  }

  /// What both say of their channels begins like that.
  bool channels_are(const std::string& words) {
    return peers_->routes_at(peers_->left).starts_with(words) &&
           peers_->routes_at(peers_->right).starts_with(words);
  }

  template <class Step>
  void until_channels_are(const std::string& words, Step step) {
    const auto deadline = std::chrono::steady_clock::now() + kLimit;
    bool are = channels_are(words);
    while (!are && std::chrono::steady_clock::now() < deadline) {
      step();
      are = channels_are(words);
    }
    EXPECT_TRUE(are) << peers_->routes_at(peers_->left);
  }

  unsigned streams_ = 0;

  std::optional<LongLink> link_;
  std::optional<ConnectedPeers> peers_;
};

TEST_F(LongLinkTest, WhatIsLostDoubledOrLateComesOnceAndWhole) {
  ASSERT_NO_FATAL_FAILURE(make("delay_us=1000 jitter_us=500 loss_ppm=5000 duplicate_ppm=5000 late_ppm=5000"));
  peers_->fill(peers_->left, 1);
  move("write");
  peers_->expect_filled(peers_->right, 1);
  peers_->fill(peers_->right, 2);
  move("read");
  peers_->expect_filled(peers_->left, 2);
  const auto counts = link_->change("");
  ASSERT_TRUE(is_ok(status_of(counts)));
  for (const char* none : {" 0 lost", " 0 doubled", " 0 late"}) {
    EXPECT_EQ(counts->find(none), std::string::npos) << *counts;
  }
}

TEST_F(LongLinkTest, ALinkTakesItsTime) {
  ASSERT_NO_FATAL_FAILURE(make("delay_us=50000"));
  const auto start = std::chrono::steady_clock::now();
  move("write");
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(100));
}

/// Who does what.
class MoreStreamsTest : public LongLinkTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(MoreStreamsTest, ThereAreMoreWhileThereIsMuchToDoAndFewAfterARest) {
  ASSERT_NO_FATAL_FAILURE(make("delay_us=5000 rate_mbit=100 loss_ppm=1000"));
  EXPECT_TRUE(channels_are("1 channel:"));
  std::uint64_t seed = 0;
  until_channels_are("24 channels", [&] { move_filled(GetParam(), ++seed); });
  move_filled(GetParam(), ++seed);
  until_channels_are("1 channel at rest", [] {});
  move_filled(GetParam(), ++seed);
}

INSTANTIATE_TEST_SUITE_P(By, MoreStreamsTest,
                         ::testing::Values("write", "read", "write_by_right", "read_by_right"),
                         [](const auto& each) { return std::string(each.param); });

// One stream fills it, and 24 would overrun it.
TEST_F(LongLinkTest, WithBbrThereAreFewOverAPathThatOneFills) {
  if (!kernel_has("bbr")) GTEST_SKIP() << "the kernel has no bbr";
  ASSERT_NO_FATAL_FAILURE(make("delay_us=5000 rate_mbit=100 loss_ppm=1000", "bbr"));
  std::uint64_t seed = 0;
  for (const char* const words : {"write", "read"}) {
    move_filled(words, ++seed);
    EXPECT_FALSE(channels_are("24 channels")) << words;
  }
}

TEST_F(LongLinkTest, WithBbrAPeerThatStandsStillIsNoReasonForMore) {
  if (!kernel_has("bbr")) GTEST_SKIP() << "the kernel has no bbr";
  ASSERT_NO_FATAL_FAILURE(make("delay_us=5000 rate_mbit=100", "bbr"));
  const std::uint64_t transfer = peers_->start(peers_->left, "write");
  peers_->right.process().stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // many looks at what moves, which is nothing
  peers_->right.process().go_on();
  EXPECT_TRUE(is_ok(peers_->left.wait(transfer)));
  EXPECT_FALSE(channels_are("24 channels"));
}

// 128 KiB in a round trip, and 500 would fill it.
class SmallBuffersTest : public LongLinkTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(SmallBuffersTest, ThereAreMoreWithBbrToo) {
  if (!kernel_has("bbr")) GTEST_SKIP() << "the kernel has no bbr";
  ASSERT_NO_FATAL_FAILURE(make("delay_us=10000 rate_mbit=200", "bbr"));
  ASSERT_TRUE(is_ok(link_->bound_receive_buffers(std::uint64_t{256} << 10)));
  std::uint64_t seed = 0;
  until_channels_are("24 channels", [&] { move_filled(GetParam(), ++seed); });
}

INSTANTIATE_TEST_SUITE_P(By, SmallBuffersTest, ::testing::Values("write", "read"),
                         [](const auto& each) { return std::string(each.param); });

TEST_F(LongLinkTest, WhoNamesANumberOfStreamsGetsIt) {
  streams_ = 2;
  ASSERT_NO_FATAL_FAILURE(make("delay_us=5000 rate_mbit=100"));
  for (int i = 0; i != 3; ++i) move("write");
  EXPECT_TRUE(channels_are("2 channels"));
}

}  // namespace
}  // namespace p2p::testing
