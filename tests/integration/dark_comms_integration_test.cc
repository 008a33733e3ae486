// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The network of a net plugin's comms goes dark and tells nobody, while that of the session lives.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>

#include "support/eventually.h"
#include "support/hex.h"
#include "support/peer.h"
#include "support/rails.h"

namespace p2p::testing::dark_comms {
namespace {

constexpr std::size_t kSize = std::size_t{8} << 20;
constexpr std::chrono::seconds kKeepalive{2};

class DarkCommsTest : public ::testing::Test {
 protected:
  explicit DarkCommsTest(const std::string& speed = "400mbit") : rails_({speed}) {
    ::setenv("SOFTNET_INTERFACES", "e1", 1);
    ::setenv("SOFTNET_TIMEOUT_MS", "60000", 1);  // as of plugins that tell nothing
  }
  ~DarkCommsTest() override {
    ::unsetenv("SOFTNET_INTERFACES");
    ::unsetenv("SOFTNET_TIMEOUT_MS");
  }

  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
    ASSERT_TRUE(is_ok(rails_.made()));
    left_.emplace(plan(Rails::kLeftAddress), rails_.left());
    right_.emplace(plan(Rails::kRightAddress), rails_.right());
    left_->number(fmt::format("connect {} {} 20000", Rails::kRightAddress, right_->port()));
    right_->accept();
    at_left_ = left_->region(kSize);
    at_right_ = right_->region(kSize);
    id_at_left_ = left_->number(fmt::format("import 0 {}", to_hex(at_right_.descriptor)));
    id_at_right_ = right_->number(fmt::format("import 0 {}", to_hex(at_left_.descriptor)));
  }

  static EndpointPlan plan(const char* address) {
    EndpointPlan plan;
    plan.keepalive = kKeepalive;
    plan.transport = "nccl_net,tcp";
    plan.plugin = P2P_SOFTNET;
    plan.address = address;
    plan.streams = 1;
    plan.workers = kSharingWorkers;
    return plan;
  }

  /// "write" or "read", of the side that dialled or of the other one.
  std::uint64_t begin(const char* operation, bool dialled, std::uint64_t size = kSize) {
    const PeerRegion& own = dialled ? at_left_ : at_right_;
    const PeerRegion& theirs = dialled ? at_right_ : at_left_;
    return side(dialled).number(fmt::format("{} 0 {} 0 {} {} {}", operation, own.index, size,
                                            dialled ? id_at_left_ : id_at_right_, theirs.descriptor.address));
  }

  /// The bytes of one side are at the other one.
  void fill_at(bool left, std::uint64_t seed) { bytes("fill", left, seed); }
  void expect_at(bool left, std::uint64_t seed) { bytes("check", left, seed); }

  Peer& side(bool left) { return left ? *left_ : *right_; }

  /// Without what is said before it of a peer that is slow, as a busy machine makes one.
  std::string route(bool left) {
    const std::string all = side(left).call("routes 0").value_or("");
    return all.starts_with("slow: ") ? all.substr(all.find("; ") + 2) : all;
  }

  void set_dark(bool dark) {
    rails_.set_dark(1, dark);
    ASSERT_TRUE(is_ok(rails_.made()));
  }

  Rails rails_;
  std::optional<Peer> left_, right_;
  PeerRegion at_left_, at_right_;
  std::uint64_t id_at_left_ = 0, id_at_right_ = 0;

 private:
  void bytes(const char* what, bool left, std::uint64_t seed) {
    const std::uint64_t region = left ? at_left_.index : at_right_.index;
    EXPECT_TRUE(is_ok(status_of(side(left).call(fmt::format("{} {} 0 {} {}", what, region, kSize, seed)))));
  }
};

struct Use {
  const char* operation;
  bool dialled;
};

/// Each side does one thing alone. It is over long before a plugin that tells nothing would be given up.
class OneWayTest : public DarkCommsTest, public ::testing::WithParamInterface<Use> {};

TEST_P(OneWayTest, BothSidesNoticeInTime) {
  const auto [operation, dialled] = GetParam();
  const bool from_left = (std::string(operation) == "write") == dialled;
  fill_at(from_left, 1);
  ASSERT_TRUE(is_ok(side(dialled).wait(begin(operation, dialled))));
  fill_at(from_left, 2);
  for (const std::uint64_t size : {std::uint64_t{100}, kSize}) {
    if (size != kSize) set_dark(true);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(is_ok(side(dialled).wait(begin(operation, dialled, size))));
    EXPECT_LT(std::chrono::steady_clock::now() - start, 4 * kKeepalive + kMargin);
    for (const bool left : {true, false}) {
      EXPECT_TRUE(eventually([&] { return route(left).find("softnet") == std::string::npos; }))
          << route(left);
    }
  }
  expect_at(!from_left, 2);
}

INSTANTIATE_TEST_SUITE_P(By, OneWayTest,
                         ::testing::Values(Use{"write", true}, Use{"write", false}, Use{"read", true},
                                           Use{"read", false}),
                         [](const auto& one) {
                           return fmt::format("{}OfWho{}", one.param.operation,
                                              one.param.dialled ? "Dialled" : "WasDialled");
                         });

TEST_F(DarkCommsTest, NobodyMindsWhileNothingUsesThem) {
  fill_at(true, 1);
  ASSERT_TRUE(is_ok(left_->wait(begin("write", true))));
  const std::string before = route(true);
  set_dark(true);
  const auto until = std::chrono::steady_clock::now() + 3 * kKeepalive;
  while (std::chrono::steady_clock::now() < until) {
    ASSERT_EQ(route(true), before);
    ASSERT_EQ(route(false), before);
  }
  set_dark(false);
  fill_at(true, 2);
  EXPECT_TRUE(is_ok(left_->wait(begin("write", true))));
  expect_at(false, 2);
  EXPECT_EQ(route(true), before);
}

/// So slow that a message of the comm takes as long as the keepalive time.
class ThinCommsTest : public DarkCommsTest {
 protected:
  ThinCommsTest() : DarkCommsTest("2500kbit") {}
};

TEST_F(ThinCommsTest, AreNotTakenForDark) {
  const std::string before = route(true);
  fill_at(true, 1);
  EXPECT_TRUE(is_ok(left_->wait(begin("write", true), 3 * kLimit / 2)));  // 27 s on a quiet machine
  expect_at(false, 1);
  EXPECT_EQ(route(true), before);
  EXPECT_EQ(route(false), before);
}

}  // namespace
}  // namespace p2p::testing::dark_comms
