// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/bounds.h"
#include "support/process.h"

namespace p2p::testing {
namespace {

using nlohmann::json;

struct Ended {
  int status = -1;
  std::vector<std::string> lines;
};

Ended to_its_end(const std::vector<std::string>& words) {
  Ended ended;
  auto process = Process::spawn(words);
  if (!process) return ended;
  for (auto line = process->read_line(4 * kLimit); line; line = process->read_line(4 * kLimit)) {
    ended.lines.push_back(*line);
  }
  ended.status = process->wait(kLimit).code.value_or(-1);
  return ended;
}

/// Runs p2p-perf to its end.
Ended perf(const std::vector<std::string>& arguments) {
  // Its two processes take turns at each other's memory; what orders that, the thread sanitizer cannot see.
  std::vector<std::string> words{"env", "TSAN_OPTIONS=ignore_interceptors_accesses=1", P2P_PERF_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return to_its_end(words);
}

TEST(Perf, EveryOperationIsVerifiedOverEveryTransport) {
  const Ended ended = perf({"local", "--op", "write,read,send,notify", "--size", "1,4097,1M", "--transport",
                            "tcp,cma", "--depth", "3", "--duration", "0.05", "--json", "-"});
  EXPECT_EQ(ended.status, 0);
  ASSERT_EQ(ended.lines.size(), 24u);
  for (const std::string& line : ended.lines) {
    const json row = json::parse(line, nullptr, false);
    ASSERT_TRUE(row.is_object()) << line;
    std::vector<std::string> names;
    for (const auto& [name, value] : row.items()) names.push_back(name);
    EXPECT_THAT(names,
                ::testing::UnorderedElementsAre(
                    "op", "transport", "size_bytes", "blocks", "depth", "streams", "gbytes_per_second",
                    "gbytes_per_second_rounds", "messages_per_second", "latency_us_p50", "latency_us_p99",
                    "post_us", "first_us", "tenth_us", "pause_ms", "awake", "priority", "rate", "digest",
                    "beside_bytes", "beside_gbytes_per_second", "verified", "channels", "channels_wanted",
                    "channels_lost", "channels_returned", "session_resumes", "machine", "date"));
    EXPECT_EQ(row["verified"], true) << line;
    EXPECT_GT(row["gbytes_per_second"], 0.0) << line;
    EXPECT_LE(row["gbytes_per_second_rounds"][0], row["gbytes_per_second_rounds"][2]) << line;
    EXPECT_GT(row["latency_us_p50"], 0.0) << line;
    EXPECT_LE(row["latency_us_p50"], row["latency_us_p99"]) << line;
  }
  EXPECT_EQ(json::parse(ended.lines.front())["transport"], "tcp");
  EXPECT_EQ(json::parse(ended.lines.back())["transport"], "cma");
}

TEST(Perf, OtherMemoryIsCopiedAheadOfTheFirstTransfer) {
  const Ended ended = perf({"local", "--op", "write,read,send", "--size", "4097", "--transport", "tcp,cma",
                            "--awake", "--duration", "0.05", "--json", "-"});
  EXPECT_EQ(ended.status, 0);
  ASSERT_EQ(ended.lines.size(), 6u);
  for (const std::string& line : ended.lines) {
    const json row = json::parse(line);
    EXPECT_EQ(row["awake"], true) << line;
    EXPECT_EQ(row["verified"], true) << line;
    EXPECT_GT(row["first_us"], 0.0) << line;
  }
  EXPECT_NE(perf({"local", "--awake", "--pause", "1"}).status, 0) << "nothing is awake after a pause";
}

TEST(Perf, ScatteredBlocksPreparedAndFresh) {
  for (const char* list : {"--prepared", "--fresh"}) {
    const Ended ended = perf({"local", "--op", "write,read,send", "--size", "4K", "--blocks", "1000", list,
                              "--duration", "0.05", "--json", "-"});
    EXPECT_EQ(ended.status, 0) << list;
    EXPECT_EQ(ended.lines.size(), 3u) << list;
  }
}

TEST(Perf, WithoutVerificationNothingIsCalledVerified) {
  const Ended ended = perf({"local", "--size", "64K", "--no-verify", "--duration", "0.05", "--json", "-"});
  EXPECT_EQ(ended.status, 0);
  ASSERT_EQ(ended.lines.size(), 1u);
  EXPECT_EQ(json::parse(ended.lines[0])["verified"], false);
}

TEST(Perf, FailuresShowInTheStatus) {
  EXPECT_NE(perf({"client", "127.0.0.1", "--port", "1", "--size", "4K"}).status, 0);
  EXPECT_NE(perf({"local", "--size", "4K", "--transport", "pigeon"}).status, 0);
  EXPECT_NE(perf({"local", "--size", "none"}).status, 0);
  EXPECT_NE(perf({"local", "--size", "4K", "--memory", "cuda:4096", "--duration", "0.05"}).status, 0);
  EXPECT_NE(perf({"server", "--listen", "203.0.113.1"}).status, 0);
}

TEST(Perf, TheReportIsThePythonPackages) {
  const Ended ended =
      to_its_end({"sh", "-c", "exec \"$0\" report figures.json -o page.html 2>&1", P2P_PERF_PROGRAM});
  EXPECT_EQ(ended.status, 1);
  ASSERT_EQ(ended.lines.size(), 1u);
  EXPECT_THAT(ended.lines[0], ::testing::HasSubstr("python -m uccl.report"));
}

TEST(Perf, BaselineMeasuresTheMachine) {
  const Ended ended = perf({"baseline", "--json", "-"});
  EXPECT_EQ(ended.status, 0);
  EXPECT_GE(ended.lines.size(), 5u);
  for (const std::string& line : ended.lines) {
    const json figure = json::parse(line, nullptr, false);
    ASSERT_TRUE(figure.is_object()) << line;
    EXPECT_GT(figure["value"], 0.0) << line;
  }
}

}  // namespace
}  // namespace p2p::testing
