// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/schedule/lane_testing.h"
#include "p2p/log.h"
#include "support/plain_transport.h"

namespace p2p::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Carries what it is told to.
class NamedTransport : public p2p::testing::PlainTransport {
 public:
  NamedTransport(std::string name, bool to_host, bool named = false)
      : PlainTransport(std::move(name)), to_host_(to_host), named_(named) {}

  Capabilities capabilities() const override { return {.named = named_}; }
  bool carries(MemoryPlace, MemoryPlace remote) const override {
    return to_host_ || remote.kind == MemoryKind::kCuda;
  }

 private:
  const bool to_host_;
  const bool named_;  // by the user
};

class RouterTest : public ::testing::Test {
 protected:
  RouterTest() {
    set_log_sink([this](LogLevel level, std::string_view line) {
      if (level >= LogLevel::kWarning) warnings_.emplace_back(line);
    });
  }
  // A table and its regions hold each other until each region is removed.
  ~RouterTest() override {
    for (const RegionId id : made_) table_->remove(id);
    set_log_sink(nullptr);
  }

  std::unique_ptr<Router> router(const std::string& required = "") {
    auto made = std::make_unique<Router>(transports_, required);
    for (std::size_t i = 0; i < transports_.size(); ++i) {
      made->open(i,
                 std::make_shared<Lane>(Policy::spread(BatchLimits{1024, 8}, std::chrono::microseconds(0))));
    }
    return made;
  }

  std::shared_ptr<Region> local(MemoryKind kind) {
    char* const data = kind == MemoryKind::kHost ? here_ : here_ + 32;
    auto region = table_->add(data, 32, {kind, kind == MemoryKind::kHost ? -1 : 0}).value();
    made_.push_back(region->info().id);
    return region;
  }

  /// `reason` is why the first transport cannot reach it; empty: it can.
  std::shared_ptr<RemoteRegion> remote(MemoryKind kind, const std::string& reason) {
    RegionDescriptor descriptor;
    descriptor.place = {kind, kind == MemoryKind::kHost ? -1 : 0};
    auto region = std::make_shared<RemoteRegion>(RemoteRegionId{1}, descriptor);
    const RegionInfo info{.place = descriptor.place};
    std::vector<std::unique_ptr<RemoteKey>> keys(2);
    if (reason.empty()) keys[0] = std::make_unique<RemoteKey>(info);
    keys[1] = std::make_unique<RemoteKey>(info);
    region->set_ready(info, std::move(keys), {reason, ""});
    return region;
  }

  TransportList transports_{{std::make_shared<NamedTransport>("fast", false)},
                            {std::make_shared<NamedTransport>("slow", true)}};
  std::shared_ptr<RegionTable> table_ =
      std::make_shared<RegionTable>(transports_, Incarnation{1}, std::chrono::seconds(1));
  std::vector<RegionId> made_;
  std::vector<std::string> warnings_;
  char here_[64] = {};
};

TEST_F(RouterTest, ExplainsWhatIsInTheWayOfBetterOnes) {
  const auto router = this->router();
  const auto gpu = local(MemoryKind::kCuda);
  const auto good = router->explain(*gpu, *remote(MemoryKind::kCuda, ""));
  EXPECT_EQ(good.transport, "fast");
  EXPECT_THAT(good.passed, IsEmpty());

  const auto kept = router->explain(*gpu, *remote(MemoryKind::kCuda, "it is private"));
  EXPECT_EQ(kept.transport, "slow");
  ASSERT_EQ(kept.passed.size(), 1U);
  EXPECT_EQ(kept.passed[0].transport, "fast");
  EXPECT_EQ(kept.passed[0].obstacle, RouteObstacle::kNotShared);
  EXPECT_EQ(kept.passed[0].reason, "it is private");

  const auto host = router->explain(*gpu, *remote(MemoryKind::kHost, ""));
  EXPECT_EQ(host.transport, "slow");
  ASSERT_EQ(host.passed.size(), 1U);
  EXPECT_EQ(host.passed[0].obstacle, RouteObstacle::kNotCarried);

  router->close(0, "its channels broke");
  const auto closed = router->explain(*gpu, *remote(MemoryKind::kCuda, ""));
  ASSERT_EQ(closed.passed.size(), 1U);
  EXPECT_EQ(closed.passed[0].obstacle, RouteObstacle::kUnusable);
  EXPECT_EQ(closed.passed[0].reason, "its channels broke");
}

TEST_F(RouterTest, TheReasonNearestToTheCauseStays) {
  const Error gone{ErrorCode::kPeerGone, "the peer closed"};
  const Error late{ErrorCode::kTimedOut, "not connected in time"};
  const Error own{ErrorCode::kSystem, "epoll_ctl"};
  const auto told = [](const Router& router) { return router.routes().front().reason; };
  Router router(transports_);
  router.await(1);
  router.close(1, gone);
  router.close(1, late);
  EXPECT_THAT(told(router), HasSubstr("slow: the peer closed"));
  router.heard(1, "memfd_create");
  router.heard(1, "the peer closed, too");
  router.close(1, gone);
  EXPECT_THAT(told(router), HasSubstr("slow: memfd_create"));
  router.close(1, own);
  router.heard(1, "memfd_create");
  router.close(1, late);
  EXPECT_THAT(told(router), HasSubstr("slow: epoll_ctl"));
}

TEST_F(RouterTest, WarnsOnceForEachReasonWhereGpuMemoryTakesASlowerPath) {
  const auto router = this->router();
  const auto gpu = local(MemoryKind::kCuda);
  const auto host = local(MemoryKind::kHost);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(router->choose(*gpu, *remote(MemoryKind::kCuda, "region " + std::to_string(i) + " is private")),
              1U);
    EXPECT_EQ(router->choose(*gpu, *remote(MemoryKind::kCuda, "")), 0U);
    EXPECT_EQ(router->choose(*gpu, *remote(MemoryKind::kHost, "")), 1U);
    EXPECT_EQ(router->choose(*host, *remote(MemoryKind::kHost, "")), 1U);
  }
  EXPECT_EQ(router->choose(*gpu, *remote(MemoryKind::kCuda, "no peer access")), 1U);
  router->close(0, "another machine");
  EXPECT_EQ(router->choose(*gpu, *remote(MemoryKind::kCuda, "")), 1U);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("take slow, which is slower: fast: region 0 is private"),
                                     HasSubstr("fast: no peer access")));
}

TEST_F(RouterTest, WarnsOnceWhereGpuMemoryDoesNotTakeTheTransportThatWasNamed) {
  transports_[0].transport = std::make_shared<NamedTransport>("fast", false, true);
  const auto router = this->router();
  const auto gpu = local(MemoryKind::kCuda);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(router->choose(*gpu, *remote(MemoryKind::kCuda, "")), 0U);
    EXPECT_EQ(router->choose(*gpu, *remote(MemoryKind::kHost, "")), 1U);
  }
  router->close(0, "eth1: remote error (6)");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(router->choose(*gpu, *remote(MemoryKind::kCuda, "")), 1U);
  EXPECT_THAT(warnings_,
              ElementsAre(HasSubstr("between CUDA and host memory take slow, which is slower: fast"),
                          HasSubstr("take slow, which is slower: fast: eth1: remote error (6)")));
}

TEST_F(RouterTest, RefusesWhatTheRequiredTransportCannotTake) {
  const auto router = this->router("fast");
  const auto gpu = local(MemoryKind::kCuda);
  EXPECT_EQ(router->choose(*gpu, *remote(MemoryKind::kCuda, "")), 0U);
  const auto refused = router->choose(*gpu, *remote(MemoryKind::kCuda, "it is private"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(refused.error().message, HasSubstr("fast is required (UCCL_P2P_REQUIRE), and it is private"));
  EXPECT_EQ(router->choose(*gpu, *remote(MemoryKind::kHost, "")), 1U) << "it does not carry that";
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(RouterTest, OneWhoseChannelsAreAllLostComesAfterThoseThatHaveSome) {
  const auto gpu = local(MemoryKind::kCuda);
  const auto there = remote(MemoryKind::kCuda, "");
  for (const std::string required : {"", "fast"}) {
    SCOPED_TRACE(required);
    const auto router = this->router(required);
    const auto lane =
        std::make_shared<Lane>(Policy::spread(BatchLimits{1024, 8}, std::chrono::microseconds(0)), [] {});
    router->open(0, lane);
    const auto thread = *Worker::make(std::chrono::microseconds(50));
    PostUnlockActions actions;
    const auto runner = std::make_shared<ChannelRunner>(
        *thread, lane,
        ChannelRunner::Setup{"", nullptr, std::make_unique<CopyChannel>(std::make_shared<Script>(), "copy"),
                             nullptr});
    EXPECT_EQ(runner->try_turn(actions), Turn::kMoved);  // it comes up
    EXPECT_EQ(router->choose(*gpu, *there), 0U);
    runner->stop({ErrorCode::kPeerGone, "lost"});
    const std::size_t next = required.empty() ? 1 : 0;
    EXPECT_EQ(router->choose(*gpu, *there), next);
    const Explanation explained = router->explain(*gpu, *there);
    EXPECT_EQ(explained.transport, required.empty() ? "slow" : "fast");
    EXPECT_EQ(explained.passed.size(), next);
    EXPECT_THAT(router->routes().back().reason,
                HasSubstr("fast: its channels were lost, and are being opened again"));
    router->close(1, "gone");
    EXPECT_EQ(router->choose(*gpu, *there), 0U) << "work waits for those that come back";
    EXPECT_EQ(router->routes().back().transport, "fast");
  }
}

// Each side takes the first of them for messages, and both have to come to the same one.
TEST(SlotsTest, StandInTheOrderOfTheirNumbersWhicheverCameUpFirst) {
  const auto lane =
      std::make_shared<Lane>(Policy::spread(BatchLimits{1024, 8}, std::chrono::microseconds(0)), [] {});
  const auto thread = *Worker::make(std::chrono::microseconds(50));
  std::vector<std::shared_ptr<ChannelRunner>> runners;
  for (const std::uint32_t number : {2U, 0U, 1U}) {
    auto channel = std::make_unique<CopyChannel>(std::make_shared<Script>(), "copy");
    ChannelRunner::Setup setup{"", nullptr, std::move(channel), nullptr};
    setup.number = number;
    runners.push_back(std::make_shared<ChannelRunner>(*thread, lane, std::move(setup)));
    PostUnlockActions actions;
    EXPECT_EQ(runners.back()->try_turn(actions), Turn::kMoved);  // it comes up
  }
  const RunnerList up = lane->runners();
  ASSERT_EQ(up.size(), 3U);
  for (std::uint32_t number = 0; number != 3; ++number) EXPECT_EQ(up.at(number)->number(), number);
  for (const auto& runner : runners) runner->stop({ErrorCode::kCancelled, "the test ends"});
}

}  // namespace
}  // namespace p2p::engine
