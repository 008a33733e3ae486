// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Comms of `nccl_net` are reset, all that there are, while the session lives.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <future>
#include <string>
#include <vector>

#include "support/eventually.h"
#include "support/flows.h"
#include "support/peer.h"
#include "support/sides.h"

namespace p2p::testing::comms {
namespace {

constexpr unsigned kChannels = 2;

class CommsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "to reset connections takes root";
    ::setenv("SOFTNET_INTERFACES", "lo", 1);
  }

  static EndpointPlan plan(const char* transports = "nccl_net") {
    EndpointPlan plan;
    plan.transport = transports;
    plan.plugin = P2P_SOFTNET;
    plan.streams = kChannels;
    plan.workers = kSharingWorkers;
    return plan;
  }

  /// All of this process but the session's. How many.
  static std::ptrdiff_t cut_comms(const Sides& sides) {
    auto flows = flows_of(::getpid());
    const std::string session = fmt::format(":{}", sides.peer.port());
    std::erase_if(flows, [&](const Flow& flow) { return flow.remote.ends_with(session); });
    return std::count_if(flows.begin(), flows.end(), cut);
  }
};

TEST_F(CommsTest, AllOfThemAtOnceComeBack) {
  Sides sides(plan());
  sides.join();
  for (unsigned which = 0; which != Sides::kOperations; ++which) {
    SCOPED_TRACE(which);
    if (cut_comms(sides) == 0 && which == 0) GTEST_SKIP() << "this kernel resets no connections for others";
    sides.any(which, which + 10);
    if (HasFailure()) return;
  }
  const std::string all = fmt::format("{} channels:", kChannels);
  EXPECT_TRUE(eventually([&] { return sides.route().starts_with(all); })) << sides.route();
  EXPECT_GE(sides.connection.stats().channels_lost, kChannels);
  EXPECT_TRUE(is_ok(sides.connection.status()));
}

/// Alone, and where what is stuck goes over another transport.
class CutCommsTest : public CommsTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Of, CutCommsTest, ::testing::Values("nccl_net", "nccl_net,tcp"),
                         [](const auto& one) { return one.index == 0 ? "OneTransport" : "Two"; });

TEST_P(CutCommsTest, NothingFailsInItsMiddle) {
  Sides sides(plan(GetParam()));
  sides.join();
  std::atomic<std::ptrdiff_t> cuts{0};
  std::atomic<bool> over{false};
  // Cut before they are all back, again and again, they could move nothing on a busy machine.
  const auto all_up = [&] {
    const Stats stats = sides.connection.stats();
    return over || stats.channels == stats.channels_wanted;
  };
  auto cutting = std::async(std::launch::async, [&] {
    while (!over) {
      cuts += cut_comms(sides);
      EXPECT_TRUE(eventually(all_up)) << sides.route();
    }
  });
  for (unsigned i = 0; i != 3 * Sides::kOperations && !HasFailure(); ++i) {
    SCOPED_TRACE(i);
    sides.any(i, i + 10);
  }
  over = true;
  cutting.wait();
  if (cuts == 0) GTEST_SKIP() << "this kernel resets no connections for others";
  EXPECT_TRUE(is_ok(sides.connection.status()));
}

}  // namespace
}  // namespace p2p::testing::comms
