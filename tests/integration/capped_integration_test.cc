// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A short link on which each TCP connection has a small part, and one on which it has what there is.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "support/capped_link.h"
#include "support/hex.h"
#include "support/peer.h"

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
    left_.emplace(plan(CappedLink::kLeftAddress), link_->left());
    right_.emplace(plan(CappedLink::kRightAddress), link_->right());
    connection_ = left_->number(fmt::format("connect {} {} 20000", right_->address(), right_->port()));
    at_right_ = right_->accept();
    own_ = left_->region(kSize);
    theirs_ = right_->region(kSize);
    id_ = left_->number(fmt::format("import {} {}", connection_, to_hex(theirs_.descriptor)));
    own_id_ = right_->number(fmt::format("import {} {}", at_right_, to_hex(own_.descriptor)));
  }

  static EndpointPlan plan(const char* address) {
    EndpointPlan plan;
    plan.idle = std::chrono::seconds(2);
    plan.transport = "tcp";
    plan.address = address;
    plan.workers = kSharingWorkers;
    return plan;
  }

  std::uint64_t start(Peer& by, const std::string& operation) {
    const bool is_left = &by == &*left_;
    const PeerRegion& here = is_left ? own_ : theirs_;
    const PeerRegion& there = is_left ? theirs_ : own_;
    return by.number(fmt::format("{} {} {} 0 {} {} {}", operation, is_left ? connection_ : at_right_,
                                 here.index, kSize, is_left ? id_ : own_id_, there.descriptor.address));
  }

  /// Moves bytes without a pause until `enough`, with the most channels that there were; verified once.
  template <class Enough>
  std::size_t move_until(Enough enough) {
    const std::string words = GetParam();
    const std::string operation = words.substr(0, words.find('_'));
    const bool by_right = words != operation;
    Peer& by = by_right ? *right_ : *left_;
    const bool to_right = by_right == (operation == "read");
    fill_source(to_right);
    std::vector<std::uint64_t> transfers;
    for (int i = 0; i != 4; ++i) transfers.push_back(start(by, operation));
    std::size_t most = 0;
    for (std::size_t next = 0; !enough(most) && !HasFailure(); ++next) {
      std::uint64_t& oldest = transfers[next % transfers.size()];
      EXPECT_TRUE(is_ok(by.wait(oldest)));
      oldest = start(by, operation);
      most = std::max(most, channels());
    }
    for (const std::uint64_t one : transfers) EXPECT_TRUE(is_ok(by.wait(one)));
    expect_moved(to_right);
    return most;
  }

  void fill_source(bool to_right) {
    Peer& from = to_right ? *left_ : *right_;
    from.number(fmt::format("fill {} 0 {} 7", (to_right ? own_ : theirs_).index, kSize));
  }

  void expect_moved(bool to_right) {
    Peer& to = to_right ? *right_ : *left_;
    EXPECT_TRUE(
        is_ok(status_of(to.call(fmt::format("check {} 0 {} 7", (to_right ? theirs_ : own_).index, kSize)))));
  }

  std::string routes() { return left_->call(fmt::format("routes {}", connection_)).value_or(""); }

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
  std::optional<Peer> left_, right_;
  std::uint64_t connection_ = 0;
  std::uint64_t at_right_ = 0;  // the same one there
  PeerRegion own_, theirs_;
  std::uint64_t id_ = 0;      // of `theirs_`, on the left
  std::uint64_t own_id_ = 0;  // of `own_`, on the right
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
