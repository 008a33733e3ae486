// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// How much a stream over a long path holds: at its own socket, and of answers at the peer.
#include <gtest/gtest.h>

#include <algorithm>

#include "transport/tcp/backlog.h"
#include "transport/tcp/requests/read_window.h"

namespace p2p::tcp {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kKi = 1U << 10;
constexpr std::uint64_t kMega = 1U << 20;

TEST(Backlog, IsAPartOfWhatIsOnTheWay) {
  EXPECT_EQ(Backlog::bytes_for(0), 32 * kKi);
  EXPECT_EQ(Backlog::bytes_for(58 * kKi), 32 * kKi);  // 40 packets, as where one of a thousand is lost
  EXPECT_EQ(Backlog::bytes_for(2 * kMega), 512 * kKi);
  EXPECT_EQ(Backlog::bytes_for(64 * kMega), 4 * kMega);
}

// A path of 100 ms, whose answers have 64 KiB each.
class ReadWindowTest : public ::testing::Test {
 protected:
  static constexpr auto kRoundTrip = 100ms;
  static constexpr std::uint64_t kAnswer = 64 * kKi;

  ReadWindowTest() {
    window_.set_long_path(kRoundTrip);
    window_.begin(now_);
  }

  // Brings what the window holds within a round trip, but no more than `most`.
  void bring(std::uint64_t most) {
    const std::uint64_t answers = std::max<std::uint64_t>(1, std::min(window_.bytes(), most) / kAnswer);
    for (std::uint64_t i = 0; i != answers; ++i) {
      now_ += kRoundTrip / answers;
      window_.ended(kAnswer, now_);
    }
  }

  ReadWindow window_;
  ReadWindow::Clock::time_point now_ = ReadWindow::Clock::now();
};

TEST_F(ReadWindowTest, OnAShortPathItIsOneNumber) {
  const ReadWindow window;
  EXPECT_FALSE(window.long_path());
  EXPECT_EQ(window.bytes(), ReadWindow::kMost);
}

TEST_F(ReadWindowTest, GrowsWithTheStream) {
  EXPECT_EQ(window_.bytes(), ReadWindow::kLeast);
  for (int i = 0; i != 6; ++i) bring(kMega);
  EXPECT_GT(window_.bytes(), kMega);
  for (int i = 0; i != 20; ++i) bring(64 * kMega);
  EXPECT_EQ(window_.bytes(), ReadWindow::kMost);
}

TEST_F(ReadWindowTest, OfASlowStreamItStaysSmall) {
  for (int i = 0; i != 20; ++i) bring(kAnswer);
  EXPECT_LE(window_.bytes(), 4 * kAnswer);
  EXPECT_GE(window_.bytes(), ReadWindow::kLeast);
}

// One large answer at a time would leave the path empty after each.
TEST_F(ReadWindowTest, ASecondAnswerIsAskedForHoweverLarge) {
  EXPECT_TRUE(window_.has_room(0, kMega));
  EXPECT_TRUE(window_.has_room(kMega, kMega));
  EXPECT_FALSE(window_.has_room(2 * kMega, kMega));
  EXPECT_TRUE(window_.has_room(ReadWindow::kLeast - kAnswer, kAnswer));
  EXPECT_FALSE(window_.has_room(ReadWindow::kLeast, kAnswer));
  const ReadWindow of_short_path;
  EXPECT_TRUE(of_short_path.has_room(0, ReadWindow::kMost + 1));
  EXPECT_FALSE(of_short_path.has_room(ReadWindow::kMost - kAnswer, kAnswer + 1));
}

// The answers behind a lost packet are late, all of them, and come at once.
TEST_F(ReadWindowTest, ALostPacketHardlyNarrowsIt) {
  for (int i = 0; i != 20; ++i) bring(kMega);
  const std::uint64_t before = window_.bytes();
  EXPECT_GT(before, 3 * kMega);
  now_ += 4 * kRoundTrip;
  for (int i = 0; i != 16; ++i) window_.ended(kAnswer, now_);
  EXPECT_GT(window_.bytes(), before / 2);
  bring(kMega);
  bring(kMega);
  EXPECT_GT(window_.bytes(), before / 2);
}

TEST_F(ReadWindowTest, FollowsAPathThatGetsSlower) {
  for (int i = 0; i != 20; ++i) bring(kMega);
  for (int i = 0; i != 40; ++i) bring(kAnswer);
  EXPECT_LE(window_.bytes(), 4 * kAnswer);
}

}  // namespace
}  // namespace p2p::tcp
