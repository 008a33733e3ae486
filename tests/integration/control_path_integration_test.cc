// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The path of a session alone is dark for a while, or a router forgets its connection; the rails carry on.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "support/eventually.h"
#include "support/hex.h"
#include "support/peer.h"
#include "support/rails.h"

namespace p2p::testing::control_path {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSize = std::size_t{16} << 20;
constexpr std::chrono::seconds kKeepalive{6};

class ControlPathTest : public ::testing::Test {
 protected:
  explicit ControlPathTest(const std::vector<std::string>& speeds = {"400mbit", "400mbit"})
      : rails_(speeds) {}

  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
    ASSERT_TRUE(is_ok(rails_.made()));
    left_.emplace(plan(Rails::kLeftAddress), rails_.left());
    right_.emplace(plan(Rails::kRightAddress), rails_.right());
    connection_ = left_->number(fmt::format("connect {} {} 20000", Rails::kRightAddress, right_->port()));
    right_->accept();
    own_ = left_->region(kSize);
    theirs_ = right_->region(kSize);
  }

  virtual EndpointPlan plan(const char* address) const {
    EndpointPlan plan;
    plan.keepalive = kKeepalive;
    plan.transport = "tcp";
    plan.address = address;
    plan.streams = 1;
    plan.workers = kSharingWorkers;  // both rails write the same memory, one after the other
    plan.interfaces = rails_.interfaces();
    return plan;
  }

  std::uint64_t import(const PeerRegion& region) {
    return left_->number(fmt::format("import {} {}", connection_, to_hex(region.descriptor)));
  }

  /// Of the left: "write" or "read".
  std::uint64_t begin(const char* operation, const PeerRegion& own, const PeerRegion& theirs) {
    return left_->number(fmt::format("{} {} {} 0 {} {} {}", operation, connection_, own.index, kSize,
                                     import(theirs), theirs.descriptor.address));
  }

  Status write(std::uint64_t id, const PeerRegion& region) {
    return left_->wait(left_->number(fmt::format("write {} {} 0 {} {} {}", connection_, own_.index, kSize, id,
                                                 region.descriptor.address)));
  }

  void expect_both_connected() {
    EXPECT_TRUE(is_ok(status_of(left_->call(fmt::format("status {}", connection_)))));
    EXPECT_TRUE(is_ok(status_of(right_->call("status 0"))));
  }

  /// What was written is there, and a region can be made, told of, written to and taken back.
  void expect_all_goes_on() {
    const PeerRegion late = right_->region(kSize);
    EXPECT_TRUE(is_ok(write(import(late), late)));
    for (const auto& region : {theirs_, late}) {
      EXPECT_TRUE(is_ok(status_of(right_->call(fmt::format("check {} 0 {} 7", region.index, kSize)))));
    }
    // What is said of a region that goes is answered, over whatever connection the session has by now.
    EXPECT_TRUE(is_ok(status_of(right_->call(fmt::format("drop_region {}", late.index)))));
    expect_both_connected();
  }

  Rails rails_;
  std::optional<Peer> left_, right_;
  std::uint64_t connection_ = 0;
  PeerRegion own_, theirs_;
};

/// For less than the keepalive time.
TEST_F(ControlPathTest, ThatIsDarkForAWhileHarmsNothing) {
  const std::uint64_t id = import(theirs_);
  left_->number(fmt::format("fill {} 0 {} 7", own_.index, kSize));
  rails_.set_dark(0, true);
  ASSERT_TRUE(is_ok(rails_.made()));
  const auto dark = Clock::now() + kKeepalive / 2;
  do {
    EXPECT_TRUE(is_ok(write(id, theirs_)));
  } while (Clock::now() < dark);
  rails_.set_dark(0, false);
  ASSERT_TRUE(is_ok(rails_.made()));
  expect_all_goes_on();
}

/// For longer than that, and no other connection can be made: the rails tell that the peer's machine is
/// there.
TEST_F(ControlPathTest, ThatIsDarkForLongHarmsNothingWhileTheRailsCarry) {
  if (!run({"nft", "--version"})) GTEST_SKIP() << "nft (nftables) is not installed";
  const std::uint64_t id = import(theirs_);
  left_->number(fmt::format("fill {} 0 {} 7", own_.index, kSize));
  rails_.refuse_new(true);
  rails_.set_dark(0, true);
  ASSERT_TRUE(is_ok(rails_.made()));
  const auto dark = Clock::now() + 2 * kKeepalive;
  do {
    ASSERT_TRUE(is_ok(write(id, theirs_)));
  } while (Clock::now() < dark);
  rails_.set_dark(0, false);
  rails_.refuse_new(false);
  ASSERT_TRUE(is_ok(rails_.made()));
  expect_all_goes_on();
}

/// A rail on which what is announced at once takes longer than the path is dark.
class CommsControlPathTest : public ControlPathTest {
 protected:
  CommsControlPathTest() : ControlPathTest({"8mbit"}) { ::setenv("SOFTNET_INTERFACES", "e1", 1); }
  ~CommsControlPathTest() override { ::unsetenv("SOFTNET_INTERFACES"); }

  EndpointPlan plan(const char* address) const override {
    EndpointPlan plan = ControlPathTest::plan(address);
    plan.transport = "nccl_net";
    plan.plugin = P2P_SOFTNET;
    return plan;
  }
};

/// Comms announce over the session what they send, so that nothing new is begun meanwhile; what was goes on.
TEST_F(CommsControlPathTest, ThatIsDarkForLongHarmsNothingWhileCommsBringWhatWasAnnounced) {
  if (!run({"nft", "--version"})) GTEST_SKIP() << "nft (nftables) is not installed";
  const PeerRegion into = left_->region(kSize);
  const PeerRegion kept = right_->region(kSize);
  left_->number(fmt::format("fill {} 0 {} 7", own_.index, kSize));
  right_->number(fmt::format("fill {} 0 {} 9", kept.index, kSize));
  const std::uint64_t write = begin("write", own_, theirs_);
  const std::uint64_t read = begin("read", into, kept);
  ASSERT_TRUE(eventually([&] { return rails_.carried(1) > kSize / 8; }));
  rails_.refuse_new(true);
  rails_.set_dark(0, true);
  ASSERT_TRUE(is_ok(rails_.made()));
  EXPECT_TRUE(is_error(left_->wait(write, 3 * kKeepalive / 2), {ErrorCode::kTimedOut}));
  rails_.set_dark(0, false);
  rails_.refuse_new(false);
  ASSERT_TRUE(is_ok(rails_.made()));
  EXPECT_TRUE(is_ok(left_->wait(write)));
  EXPECT_TRUE(is_ok(left_->wait(read)));
  EXPECT_TRUE(is_ok(status_of(right_->call(fmt::format("check {} 0 {} 7", theirs_.index, kSize)))));
  EXPECT_TRUE(is_ok(status_of(left_->call(fmt::format("check {} 0 {} 9", into.index, kSize)))));
  expect_both_connected();
}

/// The session goes on by an address of a rail; the rails carry on meanwhile.
class GoneAddressTest : public ControlPathTest, public ::testing::WithParamInterface<bool> {};

TEST_P(GoneAddressTest, IsLeftForAnother) {
  const std::uint64_t id = import(theirs_);
  left_->number(fmt::format("fill {} 0 {} 7", own_.index, kSize));
  rails_.take_address(GetParam(), 0);
  ASSERT_TRUE(is_ok(rails_.made()));
  const auto until = Clock::now() + kKeepalive + std::chrono::seconds(1);
  do {
    ASSERT_TRUE(is_ok(write(id, theirs_)));
  } while (Clock::now() < until);
  expect_all_goes_on();
}

INSTANTIATE_TEST_SUITE_P(Of, GoneAddressTest, ::testing::Bool(), [](const auto& one) {
  return one.param ? std::string("WhoWasDialled") : std::string("WhoDialled");
});

/// Nothing is said of interfaces and addresses, there is a key, and a host has more than one network: session
/// and streams go on over another one.
class DefaultAddressTest : public ControlPathTest, public ::testing::WithParamInterface<bool> {
 protected:
  EndpointPlan plan(const char* address) const override {
    EndpointPlan plan = ControlPathTest::plan(address);
    plan.address.clear();
    plan.interfaces.clear();
    plan.key_file = plan_over("tcp_tls").key_file;
    return plan;
  }
};

TEST_P(DefaultAddressTest, ThatIsGoneIsLeftForAnother) {
  const std::uint64_t id = import(theirs_);
  left_->number(fmt::format("fill {} 0 {} 7", own_.index, kSize));
  ASSERT_TRUE(is_ok(write(id, theirs_)));
  ASSERT_EQ(rails_.control_ports().size(), 2U) << "the session, and a stream beside it";
  rails_.take_address(GetParam(), 0);
  ASSERT_TRUE(is_ok(rails_.made()));
  const auto until = Clock::now() + 2 * kKeepalive;
  do {
    ASSERT_TRUE(is_ok(write(id, theirs_)));
  } while (Clock::now() < until);
  expect_all_goes_on();
}

INSTANTIATE_TEST_SUITE_P(Of, DefaultAddressTest, ::testing::Bool(), [](const auto& one) {
  return one.param ? std::string("WhoWasDialled") : std::string("WhoDialled");
});

TEST_F(ControlPathTest, ThatARouterForgotIsDialledAnew) {
  if (!run({"nft", "--version"})) GTEST_SKIP() << "nft (nftables) is not installed";
  import(theirs_);
  const auto before = rails_.control_ports();
  ASSERT_EQ(before.size(), 1U);
  rails_.forget(before.front());
  ASSERT_TRUE(is_ok(rails_.made()));
  EXPECT_TRUE(eventually([&] {
    const auto now = rails_.control_ports();
    return std::ranges::any_of(now, [&](const std::string& port) { return port != before.front(); });
  }));
  EXPECT_TRUE(is_ok(status_of(right_->call(fmt::format("drop_region {}", theirs_.index)))));
  expect_both_connected();
}

}  // namespace
}  // namespace p2p::testing::control_path
