// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/backoff.h"

#include <gtest/gtest.h>

#include <vector>

namespace p2p {
namespace {

using namespace std::chrono_literals;

TEST(Backoff, PausesDoubleUpToALimit) {
  Backoff backoff({.first = 5ms, .longest = 30ms});
  for (const auto pause : {5ms, 10ms, 20ms, 30ms, 30ms}) EXPECT_EQ(backoff.next(), pause);
  backoff.reset();
  EXPECT_EQ(backoff.next(), 5ms);
}

TEST(Backoff, APortIsDialledAgainForAboutASecond) {
  Backoff backoff(kRedials);
  int dials = 1;
  std::chrono::milliseconds waited{};
  while (const auto pause = backoff.next()) {
    ++dials;
    waited += *pause;
  }
  EXPECT_EQ(dials, 12);
  EXPECT_EQ(waited, 1115ms);
  EXPECT_FALSE(backoff.next());
}

}  // namespace
}  // namespace p2p
