// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "source.h"

#include <gtest/gtest.h>

#include <chrono>

namespace p2p::weights {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = 1 << 20;

TEST(Pace, PatienceIsForAFewTimesWhatTheSlowestChunkTook) {
  Pace pace;
  const auto unknown = pace.patience(64 * kMiB);
  EXPECT_EQ(unknown, 10192ms) << "two seconds, and 64 MiB at 8 KiB a millisecond";
  pace.gave(200ms, true);
  EXPECT_EQ(pace.patience(64 * kMiB), 1600ms);
  pace.gave(1ms, false);
  EXPECT_EQ(pace.patience(64 * kMiB), 1600ms) << "a delta is short, and the next chunk may come whole";
  for (int chunk = 0; chunk < 40; ++chunk) pace.gave(1ms, true);
  EXPECT_EQ(pace.patience(64 * kMiB), 500ms)
      << "what was slow once is forgotten; a busy machine stands still for a while";
  pace.gave(1min, true);
  EXPECT_EQ(pace.patience(64 * kMiB), unknown);
}

TEST(Pace, AGapIsAsLongAsItsSilence) {
  const Pace::Clock::time_point start{1h};
  Pace pace;
  pace.had(start);
  pace.had(start + 100ms);
  pace.had(start + 200ms);
  const auto usual = pace.gap(start + 210ms, start);
  EXPECT_LE(usual, 100ms);
  EXPECT_EQ(pace.gap(start + 900ms, start), 700ms);
  EXPECT_EQ(pace.gap(start + 900ms, start + 850ms), usual)
      << "there was something to take from it until then";
}

TEST(Pace, StarvesWhoGetsAChunkInMoreThanThreeTimesWhatItTakesToGetOneFromIt) {
  Pace pace;
  pace.interval = 100ms;
  EXPECT_FALSE(pace.starves()) << "nothing came from it yet";
  pace.gave(40ms, true);
  EXPECT_FALSE(pace.starves());
  pace.gave(30ms, true);
  EXPECT_TRUE(pace.starves());
}

}  // namespace
}  // namespace p2p::weights
