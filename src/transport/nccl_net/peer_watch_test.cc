// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/peer_watch.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace p2p::nccl_net {
namespace {

using namespace std::chrono_literals;
using Clock = PeerWatch::Clock;

constexpr std::chrono::milliseconds kKeepalive{1000};
constexpr std::uint64_t kBytes = 1000;

/// A channel's looks, at times of the test's own.
struct Watched {
  socket::PollSet polls = *socket::PollSet::open();
  PeerWatch watch{polls, kKeepalive, 30s};
  Clock::time_point now = Clock::now();
  PeerWatch::Load load{.busy = true, .awaited = kBytes};

  Watched() { watch.start(now); }

  /// Looks so often, a quarter of the keepalive time apart; why it is given up.
  std::string look(int times, bool heard = true) {
    for (; times != 0; --times) {
      now += kKeepalive / 4;
      if (heard) watch.heard(now);
      if (const Status alive = watch.check(now, load); !alive) return alive.error().message;
    }
    return "";
  }
};

TEST(PeerWatchTest, WhatWasAnnouncedAndDoesNotComeIsNoticedWithinTheKeepaliveTime) {
  Watched one;
  EXPECT_EQ(one.look(3), "");
  EXPECT_NE(one.look(2).find("1000 bytes that were announced have not come for"), std::string::npos);
}

TEST(PeerWatchTest, ALongMessageHasMoreTime) {
  Watched one;
  one.load.awaited = std::uint64_t{512} << 10;  // two seconds at the least rate
  EXPECT_EQ(one.look(11), "");
  EXPECT_NE(one.look(3), "");
}

TEST(PeerWatchTest, EachArrivalBeginsAnew) {
  Watched one;
  for (std::uint64_t arrived = 1; arrived != 20; ++arrived) {
    EXPECT_EQ(one.look(3), "");
    one.watch.arrived(arrived, one.now);
    one.watch.moved(one.now);
  }
}

TEST(PeerWatchTest, NothingIsAwaitedOfWhoDoesNothing) {
  Watched one;
  one.load = {};
  EXPECT_EQ(one.look(200), "");
}

// A process that is stopped cannot send what it has announced.
TEST(PeerWatchTest, TimeInWhichThePeerSaysNothingDoesNotCount) {
  Watched one;
  for (int i = 0; i != 5; ++i) {
    EXPECT_EQ(one.look(12, false), "");
    EXPECT_EQ(one.look(1), "");
    one.watch.arrived(i + 1U, one.now);
  }
}

TEST(PeerWatchTest, NorTimeInWhichThisSideDidNotLook) {
  Watched one;
  for (int i = 0; i != 20; ++i) {
    one.now += 3 * kKeepalive;
    EXPECT_EQ(one.look(1), "") << i;
    one.watch.moved(one.now);
  }
}

TEST(PeerWatchTest, WhatMayBeLateIsGivenUpInTheEnd) {
  Watched one;
  one.load.awaited = 0;
  EXPECT_EQ(one.look(40), "");
  EXPECT_NE(one.look(2).find("nothing has moved"), std::string::npos);
}

}  // namespace
}  // namespace p2p::nccl_net
