// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "api/metric_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/http_testing.h"
#include "p2p/endpoint.h"
#include "p2p/metrics.h"
#include "support/bounds.h"
#include "support/eventually.h"

namespace p2p::added_metrics {
namespace {

using testing::eventually;
using testing::get;
using ::testing::HasSubstr;
using testing::kLimit;
using ::testing::Not;

Options on_loopback() {
  Options options;
  options.listen_address = "127.0.0.1";
  options.workers = 1;
  return options;
}

std::string labels(const Endpoint& endpoint) {
  return "endpoint=\"" + endpoint.address() + " " + std::to_string(endpoint.port()) + "\"";
}

std::vector<MetricSample> one() { return {{0, {}, 1}}; }

std::vector<MetricFamily> two_families() {
  return {{"trainer_steps", "Steps done.", MetricKind::kCounter, {"job"}}, {"trainer_loss", "The last one."}};
}

TEST(AddedMetricsTest, StandOnThePageUntilTheyEnd) {
  Endpoint endpoint = Endpoint::create(on_loopback()).value();
  AddedMetrics added =
      endpoint
          .add_metrics(
              two_families(),
              [] { return std::vector<MetricSample>{{0, {"a\"b"}, 3}, {0, {"c"}, 4}, {1, {}, -0.5}}; })
          .value();
  const std::string of = labels(endpoint);
  const std::string text = openmetrics(endpoint);
  EXPECT_THAT(text, HasSubstr("\n# TYPE trainer_steps counter\n# HELP trainer_steps Steps done.\n"
                              "trainer_steps_total{" +
                              of + ",job=\"a\\\"b\"} 3\ntrainer_steps_total{" + of + ",job=\"c\"} 4\n"));
  EXPECT_THAT(text,
              HasSubstr("\n# TYPE trainer_loss gauge\n# HELP trainer_loss The last one.\ntrainer_loss{" + of +
                        "} -0.5\n"));
  EXPECT_TRUE(text.ends_with("\n# EOF\n"));
  const Endpoint moved = std::move(endpoint);
  EXPECT_THAT(openmetrics(moved), HasSubstr("trainer_loss{"));
  added.end();
  EXPECT_THAT(openmetrics(moved), Not(HasSubstr("trainer")));
}

TEST(AddedMetricsTest, WhatWouldSpoilThePageIsRefused) {
  Endpoint endpoint = Endpoint::create(on_loopback()).value();
  const auto refused = [&](const std::vector<MetricFamily>& families) {
    const auto added = endpoint.add_metrics(families, [] { return std::vector<MetricSample>(); });
    return !added && added.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused({{"a", "Help."}}));
  for (const char* name : {"", "1a", "a-b", "a{", "a\n", "__a", "a_total", "a_count", "p2p_connections",
                           "p2p_endpoint_written_bytes", "p2p_endpoint_transfer_seconds", "p2p_process_up"}) {
    EXPECT_TRUE(refused({{name, "Help."}})) << name;
  }
  EXPECT_TRUE(refused({{std::string(129, 'a'), "Help."}}));
  for (const char* help : {"", "two\nlines", "a \"quote\"", "\xc3\xa4"})
    EXPECT_TRUE(refused({{"a", help}})) << help;
  for (const char* label : {"", "endpoint", "process", "le", "__x", "a b"}) {
    EXPECT_TRUE(refused({{"a", "Help.", MetricKind::kGauge, {label}}})) << label;
  }
  EXPECT_TRUE(refused({{"a", "Help.", MetricKind::kGauge, {"x", "x"}}}));
  EXPECT_TRUE(refused({{"a", "Help."}, {"a", "Help."}}));
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused(std::vector<MetricFamily>(65, {"a", "Help."})));
  EXPECT_FALSE(endpoint.add_metrics(two_families(), nullptr));
}

TEST(AddedMetricsTest, SamplesThatDoNotFitAreLeftOut) {
  Endpoint endpoint = Endpoint::create(on_loopback()).value();
  const AddedMetrics added =
      endpoint
          .add_metrics(two_families(),
                       [] {
                         std::vector<MetricSample> said{
                             {2, {}, 1},    {0, {}, 1},           {0, {"x"}, -1},      {1, {}, NAN},
                             {1, {"x"}, 1}, {0, {"y\nz\xff"}, 1}, {0, {"y\nz\xff"}, 2}};
                         for (int i = 0; i < 5000; ++i) said.push_back({0, {std::to_string(i)}, 1});
                         return said;
                       })
          .value();
  const std::string text = openmetrics(endpoint);
  EXPECT_THAT(text, HasSubstr("trainer_steps_total{" + labels(endpoint) + ",job=\"y?z?\"} 1\n"));
  std::size_t lines = 0;
  for (std::size_t at = 0; (at = text.find("\ntrainer_", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, 4096U - 7 + 1);
}

TEST(AddedMetricsTest, AFunctionThatThrowsOrHangsHoldsUpNothing) {
  auto endpoint = std::make_unique<Endpoint>(Endpoint::create(on_loopback()).value());
  std::promise<void> go_on;
  const std::shared_future<void> told = go_on.get_future().share();
  std::atomic<int> calls{0};
  AddedMetrics hangs = endpoint
                           ->add_metrics({{"slow", "Late."}},
                                         [&, told] {
                                           ++calls;
                                           told.wait();
                                           return std::vector<MetricSample>{{0, {}, 1}};
                                         })
                           .value();
  const AddedMetrics throws =
      endpoint
          ->add_metrics({{"bad", "None."}},
                        []() -> std::vector<MetricSample> { throw std::runtime_error("no"); })
          .value();
  const AddedMetrics odd =
      endpoint->add_metrics({{"odd", "None."}}, []() -> std::vector<MetricSample> { throw 7; }).value();
  const AddedMetrics good = endpoint->add_metrics({{"good", "There."}}, one).value();
  for (int round = 0; round < 2; ++round) {
    const std::string text = openmetrics(*endpoint);
    EXPECT_THAT(text, HasSubstr("\ngood{"));
    EXPECT_THAT(text, HasSubstr("\np2p_connections{"));
    EXPECT_THAT(text, Not(HasSubstr("\nslow{")));
    EXPECT_THAT(text, Not(HasSubstr("\nbad{")));
    EXPECT_THAT(text, Not(HasSubstr("\nodd{")));
  }
  EXPECT_EQ(calls, 1) << "a second call beside one that is under way";
  go_on.set_value();
  EXPECT_TRUE(eventually([&] { return openmetrics(*endpoint).find("\nslow{") != std::string::npos; }));
  endpoint.reset();
  hangs.end();
}

TEST(AddedMetricsTest, EndInTheirOwnFunction) {
  Endpoint endpoint = Endpoint::create(on_loopback()).value();
  AddedMetrics added;
  const auto owned = std::make_shared<int>(1);
  added = endpoint
              .add_metrics({{"once", "Ends itself."}},
                           [&, owned] {
                             added.end();
                             return std::vector<MetricSample>{{0, {}, 1}};
                           })
              .value();
  EXPECT_THAT(openmetrics(endpoint), Not(HasSubstr("once")));
  EXPECT_TRUE(eventually([&] { return owned.use_count() == 1; })) << "the function was not let go of";
}

std::size_t lines_of(const std::string& text, const std::string& name) {
  std::size_t lines = 0;
  for (std::size_t at = 0; (at = text.find("\n" + name, at)) != std::string::npos; ++at) ++lines;
  return lines;
}

TEST(AddedMetricsTest, TextsStayWithinTheirQuotesAndBounds) {
  Endpoint endpoint = Endpoint::create(on_loopback()).value();
  std::vector<MetricSample> said;
  const AddedMetrics added =
      endpoint.add_metrics({{"a", "Help.", MetricKind::kGauge, {"x", "y"}}}, [&] { return said; }).value();
  const std::string of = "\na{" + labels(endpoint) + ",x=";
  said = {{0, {"\"} 1\nb{c=\"", "\\\r\0"}, 1},
          {0, {std::string(256, 'l'), std::string(257, 'm')}, 2},
          {0, {"i", "i"}, std::numeric_limits<double>::infinity()},
          {0, {"", ""}, 1e300}};
  std::string text = openmetrics(endpoint);
  EXPECT_THAT(text, HasSubstr(of + R"("\"} 1?b{c=\"",y="\\?"} 1)" + "\n"));
  EXPECT_THAT(text,
              HasSubstr(of + '"' + std::string(256, 'l') + "\",y=\"" + std::string(253, 'm') + "...\"} 2\n"));
  EXPECT_THAT(text, HasSubstr(of + R"("",y=""} 1e+300)" + "\n"));
  EXPECT_EQ(lines_of(text, "a{"), 3U);
  said.clear();
  for (int i = 0; i < 4096; ++i)
    said.push_back(
        {0, {std::string(252, 'z') + std::to_string(1000 + i).substr(0, 4), std::string(256, 'y')}, 1});
  text = openmetrics(endpoint);
  EXPECT_EQ(lines_of(text, "a{"), MetricSource::kMostLabelBytes / 512)
      << "more text than a page has for labels";
}

/// A port of 127.0.0.1 at which endpoints with these options serve their metrics.
struct Served {
  Served() {
    EXPECT_TRUE(testing::loopback(port, false));
    options.metrics = "127.0.0.1:" + std::to_string(port);
  }
  std::string page() const { return get(port, "/metrics"); }

  std::uint16_t port = 0;
  Options options = on_loopback();
};

TEST(AddedMetricsTest, AnEndpointEndsWhileAPageWaitsForItsFunction) {
  const Served served;
  const Endpoint keeper = Endpoint::create(served.options).value();
  if (served.page().empty()) GTEST_SKIP() << "built without HTTP";
  auto ending = std::make_unique<Endpoint>(Endpoint::create(served.options).value());
  const std::string gone = labels(*ending);
  std::promise<void> called;
  std::promise<void> go_on;
  std::atomic<bool> over{false};
  AddedMetrics added = ending
                           ->add_metrics({{"ends", "Help."}},
                                         [&, until = go_on.get_future().share()] {
                                           called.set_value();
                                           until.wait_for(kLimit);
                                           over = true;
                                           return one();
                                         })
                           .value();
  auto page = std::async(std::launch::async, [&] { return served.page(); });
  EXPECT_EQ(called.get_future().wait_for(kLimit), std::future_status::ready);
  ending.reset();
  EXPECT_FALSE(over) << "the endpoint waited for the function";
  go_on.set_value();
  const std::string text = page.get();
  EXPECT_THAT(text, HasSubstr(labels(keeper)));
  EXPECT_THAT(text, Not(HasSubstr(gone)));
  added.end();
  EXPECT_TRUE(over) << "the end has not waited for the function";
}

/// What a function reads until its `AddedMetrics` has ended. The thread sanitizer looks at `ended`.
struct Read {
  std::atomic<int> calls{0};
  bool ended = false;
};

TEST(AddedMetricsTest, PagesAreMadeWhileEndpointsAndFunctionsEnd) {
  const Served served;
  Endpoint keeper = Endpoint::create(served.options).value();
  if (served.page().empty()) GTEST_SKIP() << "built without HTTP";
  std::atomic<bool> stop{false};
  std::atomic<int> pages{0};
  std::atomic<int> spoilt{0};
  std::atomic<int> late{0};
  const auto look = [&](auto&& page) {
    while (!stop) {
      const std::string text = page();
      if (!text.empty()) ++(text.find(labels(keeper)) == std::string::npos ? spoilt : pages);
    }
  };
  std::vector<std::thread> lookers;
  for (int i = 0; i < 2; ++i) lookers.emplace_back([&] { look([&] { return served.page(); }); });
  lookers.emplace_back([&] { look([&] { return openmetrics(keeper); }); });
  std::vector<std::unique_ptr<Read>> reads;
  const auto add = [&](Endpoint& to) {
    Read* const read = reads.emplace_back(std::make_unique<Read>()).get();
    return to
        .add_metrics({{"brief", "Help."}},
                     [read, &late] {
                       if (read->ended) ++late;
                       ++read->calls;
                       return one();
                     })
        .value();
  };
  for (int round = 0; round < testing::scaled(30, 15); ++round) {
    auto endpoint = std::make_unique<Endpoint>(Endpoint::create(served.options).value());
    AddedMetrics mine = add(*endpoint);
    AddedMetrics kept = add(keeper);
    Read& first = *reads[reads.size() - 2];
    EXPECT_TRUE(eventually([&] { return first.calls > 0 && reads.back()->calls > 0; }));
    if (round % 2 == 0) endpoint.reset();
    mine.end();
    first.ended = true;
    kept.end();
    reads.back()->ended = true;
  }
  stop = true;
  for (std::thread& one : lookers) one.join();
  EXPECT_EQ(spoilt, 0);
  EXPECT_EQ(late, 0) << "a function was called after its end";
  EXPECT_GT(pages, 0);
}

}  // namespace
}  // namespace p2p::added_metrics
