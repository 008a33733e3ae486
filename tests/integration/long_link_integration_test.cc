// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Two hosts with a link between them that is long and loses, doubles and reorders packets.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "support/hex.h"
#include "support/long_link.h"
#include "support/peer.h"

namespace p2p::testing {
namespace {

constexpr std::size_t kSize = std::size_t{8} << 20;

class LongLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = LongLink::missing(); !missing.empty()) GTEST_SKIP() << missing;
  }

  void make(const std::string& profile) {
    link_.emplace(1, profile);
    ASSERT_TRUE(is_ok(link_->made()));
    left_.emplace(plan(LongLink::kLeftAddress), link_->left());
    right_.emplace(plan(LongLink::kRightAddress), link_->right());
    connection_ = left_->number(fmt::format("connect {} {} 20000", right_->address(), right_->port()));
    at_right_ = right_->accept();
    own_ = left_->region(kSize);
    theirs_ = right_->region(kSize);
    id_ = left_->number(fmt::format("import {} {}", connection_, to_hex(theirs_.descriptor)));
    own_id_ = right_->number(fmt::format("import {} {}", at_right_, to_hex(own_.descriptor)));
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

  static void fill(Peer& side, const PeerRegion& region, std::uint64_t seed) {
    side.number(fmt::format("fill {} 0 {} {}", region.index, kSize, seed));
  }

  static void expect_filled(Peer& side, const PeerRegion& region, std::uint64_t seed) {
    EXPECT_TRUE(is_ok(status_of(side.call(fmt::format("check {} 0 {} {}", region.index, kSize, seed)))));
  }

  /// "write" or "read" of all that there is, by the left side.
  void move(const std::string& operation) {
    const std::uint64_t transfer = left_->number(fmt::format(
        "{} {} {} 0 {} {} {}", operation, connection_, own_.index, kSize, id_, theirs_.descriptor.address));
    EXPECT_TRUE(is_ok(left_->wait(transfer)));
  }

  /// ... or by the right one, which was dialled.
  void move_by_right(const std::string& operation) {
    const std::uint64_t transfer = right_->number(fmt::format(
        "{} {} {} 0 {} {} {}", operation, at_right_, theirs_.index, kSize, own_id_, own_.descriptor.address));
    EXPECT_TRUE(is_ok(right_->wait(transfer)));
  }

  /// What both say of their channels begins like that.
  bool channels_are(const std::string& words) {
    return left_->call(fmt::format("routes {}", connection_)).value_or("").starts_with(words) &&
           right_->call(fmt::format("routes {}", at_right_)).value_or("").starts_with(words);
  }

  template <class Step>
  void until_channels_are(const std::string& words, Step step) {
    const auto deadline = std::chrono::steady_clock::now() + kLimit;
    bool are = channels_are(words);
    while (!are && std::chrono::steady_clock::now() < deadline) {
      step();
      are = channels_are(words);
    }
    EXPECT_TRUE(are) << left_->call(fmt::format("routes {}", connection_)).value_or("");
  }

  unsigned streams_ = 0;

  std::optional<LongLink> link_;
  std::optional<Peer> left_, right_;
  std::uint64_t connection_ = 0;
  std::uint64_t at_right_ = 0;  // the same one there
  PeerRegion own_, theirs_;
  std::uint64_t id_ = 0;      // of `theirs_`, on the left
  std::uint64_t own_id_ = 0;  // of `own_`, on the right
};

TEST_F(LongLinkTest, WhatIsLostDoubledOrLateComesOnceAndWhole) {
  ASSERT_NO_FATAL_FAILURE(make("delay_us=1000 jitter_us=500 loss_ppm=5000 duplicate_ppm=5000 late_ppm=5000"));
  fill(*left_, own_, 1);
  move("write");
  expect_filled(*right_, theirs_, 1);
  fill(*right_, theirs_, 2);
  move("read");
  expect_filled(*left_, own_, 2);
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
class MoreStreamsTest : public LongLinkTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void move_once(std::uint64_t seed) {
    const std::string words = GetParam();
    const std::string operation = words.substr(0, words.find('_'));
    const bool by_right = words != operation;
    const bool to_right = by_right == (operation == "read");
    Peer& from = to_right ? *left_ : *right_;
    fill(from, to_right ? own_ : theirs_, seed);
    by_right ? move_by_right(operation) : move(operation);
    expect_filled(to_right ? *right_ : *left_, to_right ? theirs_ : own_, seed);
  }
};

TEST_P(MoreStreamsTest, ThereAreMoreWhileThereIsMuchToDoAndFewAfterARest) {
  ASSERT_NO_FATAL_FAILURE(make("delay_us=5000 rate_mbit=100 loss_ppm=1000"));
  EXPECT_TRUE(channels_are("1 channel:"));
  std::uint64_t seed = 0;
  until_channels_are("24 channels", [&] { move_once(++seed); });
  move_once(++seed);
  until_channels_are("1 channel at rest", [] {});
  move_once(++seed);
}

INSTANTIATE_TEST_SUITE_P(By, MoreStreamsTest,
                         ::testing::Values("write", "read", "write_by_right", "read_by_right"),
                         [](const auto& each) { return std::string(each.param); });

TEST_F(LongLinkTest, WhoNamesANumberOfStreamsGetsIt) {
  streams_ = 2;
  ASSERT_NO_FATAL_FAILURE(make("delay_us=5000 rate_mbit=100"));
  for (int i = 0; i != 3; ++i) move("write");
  EXPECT_TRUE(channels_are("2 channels"));
}

}  // namespace
}  // namespace p2p::testing
