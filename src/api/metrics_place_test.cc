// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "api/metrics_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "api/http_testing.h"
#include "base/unique_fd.h"
#include "drivers/socket/local_socket.h"
#include "support/bounds.h"
#include "support/eventually.h"

namespace p2p::metrics_place {
namespace {

using ::testing::AllOf;
using testing::eventually;
using testing::get;
using ::testing::HasSubstr;
using testing::loopback;

http::Reply page_of(const std::string& endpoint) {
  return {200, "text/plain",
          "# TYPE a gauge\n# HELP a What.\na{endpoint=\"" + endpoint +
              "\"} 1\n# TYPE b gauge\n# HELP b More.\nb{endpoint=\"" + endpoint + "\"} 2\n# EOF\n"};
}

TEST(MetricsMergeTest, LinesOfOneMetricStandTogetherUnderOneHead) {
  std::vector<ProcessReply> replies{{"7", page_of("x")}, {"7", page_of("y")}, {"8", std::nullopt}};
  EXPECT_EQ(merge_metrics(replies).body,
            "# TYPE a gauge\n# HELP a What.\n"
            "a{process=\"7\",endpoint=\"x\"} 1\na{process=\"7-2\",endpoint=\"y\"} 1\n"
            "# TYPE b gauge\n# HELP b More.\n"
            "b{process=\"7\",endpoint=\"x\"} 2\nb{process=\"7-2\",endpoint=\"y\"} 2\n"
            "# TYPE p2p_process_up gauge\n"
            "# HELP p2p_process_up Whether the process answers, or has not in time (0).\n"
            "p2p_process_up{process=\"7\"} 1\np2p_process_up{process=\"7-2\"} 1\n"
            "p2p_process_up{process=\"8\"} 0\n# EOF\n");
}

TEST(MetricsMergeTest, WhatIsNoPageAddsNothing) {
  std::vector<ProcessReply> replies{{"7", http::Reply{200, "text/plain", "nonsense\n\na{} 1\n# "}},
                                    {"8", http::Reply{503, "text/plain", "a{} 1\n"}}};
  EXPECT_THAT(merge_metrics(replies).body, ::testing::StartsWith("# TYPE p2p_process_up"));
  EXPECT_THAT(merge_metrics(replies).body, HasSubstr("p2p_process_up{process=\"8\"} 0\n"));
}

TEST(MetricsMergeTest, ANameIsOneKindOfMetric) {
  const http::Reply counter{200, "text/plain", "# TYPE a counter\n# HELP a Some.\na_total{x=\"1\"} 1\n"};
  std::vector<ProcessReply> replies{{"7", counter}, {"8", page_of("y")}, {"9", counter}};
  EXPECT_THAT(merge_metrics(replies).body,
              ::testing::StartsWith("# TYPE a counter\n# HELP a Some.\n"
                                    "a_total{process=\"7\",x=\"1\"} 1\na_total{process=\"9\",x=\"1\"} 1\n"
                                    "# TYPE b gauge\n# HELP b More.\nb{process=\"8\",endpoint=\"y\"} 2\n"));
}

TEST(MetricsMergeTest, AllHaveToBeWell) {
  std::vector<ProcessReply> one{{"7", http::Reply{200, "text/plain", "ok\n"}}};
  EXPECT_EQ(merge_health(one).body, "ok\n");
  std::vector<ProcessReply> two{one.front(), {"8", std::nullopt}};
  EXPECT_EQ(merge_health(two).status, 503U);
  EXPECT_EQ(merge_health(two).body, "process 7: ok\nprocess 8: does not answer\n");
}

class MetricsPlaceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::uint16_t port = 0;
    ASSERT_TRUE(loopback(port, false));
    port_ = port;
    settings_.place = "127.0.0.1:" + std::to_string(port);
  }

  /// One that answers as a process with that name; null where the library was built without a server.
  std::unique_ptr<MetricsPlace> join(const std::string& name) {
    return join([name](const http::Request& request) {
      return request.path == "/metrics" ? page_of(name) : http::Reply{200, "text/plain", name + " is well\n"};
    });
  }

  std::unique_ptr<MetricsPlace> join(MetricsPlace::Answer answer) {
    auto joined = MetricsPlace::join(settings_, std::move(answer));
    if (!joined && joined.error().code == ErrorCode::kUnavailable) return nullptr;
    EXPECT_TRUE(joined) << joined.error().message;
    return joined ? std::move(*joined) : nullptr;
  }

  bool eventually_says(const std::string& path, const std::string& words) const {
    return eventually([&] { return get(port_, path).find(words) != std::string::npos; });
  }

  http::Server::Settings settings_;
  std::uint16_t port_ = 0;
};

TEST_F(MetricsPlaceTest, OneServesForAllAndAnotherGoesOnOnceItIsGone) {
  auto first = join("first");
  if (!first) GTEST_SKIP() << "built without HTTP";
  auto second = join("second");
  auto third = join("third");
  EXPECT_EQ(first->served(), settings_.place);
  EXPECT_EQ(second->served(), "");
  const std::string pid = std::to_string(::getpid());
  EXPECT_TRUE(eventually_says("/metrics", "a{process=\"" + pid + "-3\""));
  EXPECT_THAT(get(port_, "/metrics"), AllOf(HasSubstr("first"), HasSubstr("second"), HasSubstr("third")));
  EXPECT_THAT(get(port_, "/readyz"), HasSubstr("200 OK"));
  EXPECT_THAT(get(port_, "/readyz"), HasSubstr("process " + pid + "-2: "));
  first.reset();
  EXPECT_TRUE(eventually([&] { return second->served() != third->served(); }));
  EXPECT_TRUE(eventually_says("/metrics", "a{process=\"" + pid + "-2\""));
  EXPECT_THAT(get(port_, "/metrics"),
              AllOf(Not(HasSubstr("first")), HasSubstr("second"), HasSubstr("third")));
  (second->served().empty() ? second : third).reset();
  EXPECT_TRUE(eventually([&] { return get(port_, "/healthz").find(" is well") != std::string::npos; }));
  EXPECT_THAT(get(port_, "/healthz"), Not(HasSubstr("process ")));
}

TEST_F(MetricsPlaceTest, OneThatDoesNotAnswerIsWaitedForOnceAndIsNotReady) {
  auto server = join("server");
  if (!server) GTEST_SKIP() << "built without HTTP";
  std::promise<void> go_on;
  auto hung = join([until = go_on.get_future().share()](const http::Request&) {
    until.wait();
    return page_of("hung");
  });
  EXPECT_TRUE(eventually_says("/readyz", "-2: does not answer\n"));
  EXPECT_THAT(get(port_, "/readyz"), HasSubstr("503"));
  EXPECT_THAT(get(port_, "/metrics"),
              AllOf(HasSubstr("200 OK"), HasSubstr("-2\"} 0\n"), HasSubstr("server")));
  go_on.set_value();
  EXPECT_TRUE(eventually_says("/metrics", "hung"));
}

TEST_F(MetricsPlaceTest, WhoeverSaysNonsenseIsLeftOut) {
  auto server = join("server");
  if (!server) GTEST_SKIP() << "built without HTTP";
  const std::string name = "p2p-metrics-" + std::to_string(::geteuid()) + "-" + settings_.place;
  const auto stranger = socket::connect_locally(name);
  ASSERT_TRUE(stranger) << stranger.error().message;
  const auto deadline = std::chrono::steady_clock::now() + testing::kLimit;
  EXPECT_TRUE(socket::send_packet(*stranger, as_bytes("7\n# EOF"), {}, deadline));
  EXPECT_THAT(get(port_, "/metrics"), AllOf(HasSubstr("server"), Not(HasSubstr("-2"))));
  EXPECT_TRUE(socket::receive_packet(*stranger, 4096, 0, deadline)) << "the question";
  EXPECT_FALSE(socket::receive_packet(*stranger, 4096, 0, deadline)) << "still listened to";
}

TEST_F(MetricsPlaceTest, APlaceThatSomethingElseHasIsServedOnceItIsFree) {
  std::uint16_t port = port_;
  UniqueFd taken = loopback(port, false);
  ASSERT_EQ(::listen(taken.get(), 1), 0);
  auto place = join("late");
  if (!place) GTEST_SKIP() << "built without HTTP";
  EXPECT_EQ(place->served(), "");
  taken.reset();
  EXPECT_TRUE(eventually([&] { return place->served() == settings_.place; }));
}

TEST_F(MetricsPlaceTest, PortsThatTheSystemChoosesAreOfOneProcess) {
  settings_.place = "127.0.0.1:0";
  auto first = join("first");
  if (!first) GTEST_SKIP() << "built without HTTP";
  auto second = join("second");
  EXPECT_NE(first->served(), second->served());
}

}  // namespace
}  // namespace p2p::metrics_place
