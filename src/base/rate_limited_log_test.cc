// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/rate_limited_log.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace p2p {
namespace {

using std::chrono::milliseconds;

TEST(RateLimitedLog, SpeaksOnceASecondOfAllThatCame) {
  RateLimitedLog events(LogLevel::kWarning);
  const auto start = RateLimitedLog::Clock::now();
  EXPECT_EQ(events.count(start), 1U);
  for (int i = 0; i != 1000; ++i) EXPECT_EQ(events.count(start + milliseconds(i * 999 / 1000)), std::nullopt);
  EXPECT_EQ(events.count(start + milliseconds(1000)), 1001U);
  EXPECT_EQ(events.count(start + milliseconds(1500)), std::nullopt);
  EXPECT_EQ(events.count(start + milliseconds(5000)), 2U);
}

TEST(RateLimitedLog, WritesOneLineOfMany) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  RateLimitedLog events(LogLevel::kWarning);
  for (int i = 0; i != 100; ++i) events.log("stranger {}", i);
  set_log_sink(nullptr);
  EXPECT_THAT(lines, ::testing::ElementsAre("stranger 0"));
}

}  // namespace
}  // namespace p2p
