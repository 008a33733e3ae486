// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/observe/path_history.h"

#include <gtest/gtest.h>

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;

TEST(PathHistory, TellsWhatWasLostWhenAndWhatCameBack) {
  const auto start = PathHistory::Clock::now();
  PathHistory history;
  EXPECT_EQ(history.describe(start), "");
  history.lost("eth1", "reset by peer", start);
  EXPECT_EQ(history.describe(start + 1500ms), "lost once, last eth1 1.5 s ago: reset by peer");
  history.returned(start + 2s);
  EXPECT_EQ(history.describe(start + 2500ms),
            "lost once, last eth1 2.5 s ago: reset by peer; back once, last 0.5 s ago");
  history.lost("", "silent", start + 3s);
  EXPECT_EQ(history.describe(start + 4s), "lost 2 times, last 1.0 s ago: silent; back once, last 2.0 s ago");
  EXPECT_EQ(history.losses(), 2U);
  EXPECT_EQ(history.returns(), 1U);
}

}  // namespace
}  // namespace p2p::engine
