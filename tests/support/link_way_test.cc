// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a link does to its packets, with a clock of its own.
#include "support/link_way.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <utility>
#include <vector>

namespace p2p::testing {
namespace {

using namespace std::chrono_literals;
using Time = LinkWay::Time;

constexpr std::size_t kBytes = 1250;  // 10 us at 1000 Mbit/s

LinkWay::Packet packet(std::uint32_t number) {
  LinkWay::Packet made(kBytes);
  std::memcpy(made.data(), &number, sizeof number);
  return made;
}

/// Each packet's number and arrival.
std::vector<std::pair<std::uint32_t, Time>> arrivals(LinkWay& way) {
  std::vector<std::pair<std::uint32_t, Time>> all;
  while (const auto at = way.next()) {
    const auto come = way.give(*at);
    std::uint32_t number = 0;
    std::memcpy(&number, come->data(), sizeof number);
    all.emplace_back(number, *at);
  }
  return all;
}

/// So many, one each 20 us.
std::vector<std::pair<std::uint32_t, Time>> carry(LinkWay& way, std::uint32_t packets) {
  for (std::uint32_t i = 0; i != packets; ++i) way.take(packet(i), i * 20us);
  return arrivals(way);
}

TEST(LinkWay, DelaysByTheRateAndTheTime) {
  LinkWay way({.rate_mbit = 1000, .delay_us = 5000}, 1);
  way.take(packet(0), 0us);
  way.take(packet(1), 0us);
  EXPECT_FALSE(way.give(5009us));
  EXPECT_EQ(way.next(), Time(5010us));
  const auto come = arrivals(way);
  ASSERT_EQ(come.size(), 2U);
  EXPECT_EQ(come[1].second, Time(5020us));
}

TEST(LinkWay, DropsWhatItsQueueHasNoRoomFor) {
  LinkWay way({.rate_mbit = 1000, .delay_us = 5000, .queue_us = 1000}, 1);
  for (std::uint32_t i = 0; i != 200; ++i) way.take(packet(i), 0us);
  EXPECT_EQ(way.counts().dropped, 99U);
  EXPECT_EQ(arrivals(way).size(), 101U);
}

TEST(LinkWay, LosesAndDoublesAsManyAsItIsTold) {
  LinkWay way({.rate_mbit = 1000, .loss_ppm = 10'000, .duplicate_ppm = 5000}, 7);
  constexpr std::uint32_t kPackets = 20'000;
  const auto come = carry(way, kPackets);
  EXPECT_NEAR(static_cast<double>(way.counts().lost), 200, 70);
  EXPECT_NEAR(static_cast<double>(way.counts().doubled), 100, 50);
  EXPECT_EQ(come.size(), kPackets - way.counts().lost + way.counts().doubled);
}

TEST(LinkWay, KeepsTheOrderInSpiteOfJitter) {
  LinkWay way({.rate_mbit = 1000, .delay_us = 1000, .jitter_us = 500}, 7);
  std::uint32_t expected = 0;
  Time longest{0};
  for (const auto& [number, at] : carry(way, 10'000)) {
    EXPECT_EQ(number, expected++);
    longest = std::max(longest, at - number * 20us);
  }
  EXPECT_GT(longest, Time(1400us));
  EXPECT_LE(longest, Time(1510us));
}

TEST(LinkWay, HasSomeComeBehindThoseAfterThem) {
  LinkWay way({.rate_mbit = 1000, .late_ppm = 10'000}, 7);
  const auto come = carry(way, 10'000);
  EXPECT_EQ(come.size(), 10'000U);
  std::uint64_t behind = 0;
  for (std::size_t i = 1; i < come.size(); ++i) behind += come[i].first < come[i - 1].first;
  EXPECT_GT(behind, 50U);
  EXPECT_LE(behind, way.counts().late);
}

TEST(LinkWay, DoesTheSameAgainByTheSameSeed) {
  const LinkProfile profile{
      .rate_mbit = 1000, .jitter_us = 300, .loss_ppm = 5000, .duplicate_ppm = 5000, .late_ppm = 5000};
  LinkWay one(profile, 3);
  LinkWay again(profile, 3);
  LinkWay other(profile, 4);
  const auto come = carry(one, 5000);
  EXPECT_EQ(come, carry(again, 5000));
  EXPECT_NE(come, carry(other, 5000));
}

TEST(LinkProfile, IsReadFromWords) {
  const auto read = LinkProfile::parse("delay_us=50000 loss_ppm=10000", {.jitter_us = 5});
  ASSERT_TRUE(read);
  EXPECT_EQ(read->delay_us, 50'000U);
  EXPECT_EQ(read->loss_ppm, 10'000U);
  EXPECT_EQ(read->jitter_us, 5U);
  for (const char* wrong : {"delay_us", "delay_us=", "delay_us=x", "delay=1", "rate_mbit=0"}) {
    EXPECT_FALSE(LinkProfile::parse(wrong, {})) << wrong;
  }
}

}  // namespace
}  // namespace p2p::testing
