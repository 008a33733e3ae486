// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/background.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "support/eventually.h"

namespace p2p {
namespace {

using testing::eventually;
using namespace std::chrono_literals;

TEST(Background, RunsTasksInOrderOnAnotherThread) {
  std::vector<int> order;
  std::atomic<int> done{0};
  std::thread::id thread;
  Background background("test");
  for (int i = 0; i < 10; ++i) {
    background.post([&, i] {
      order.push_back(i);
      thread = std::this_thread::get_id();
      ++done;
    });
  }
  ASSERT_TRUE(eventually([&] { return done == 10; }));
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(Background, StartsAgainAfterItRanOutOfTasks) {
  std::atomic<int> done{0};
  Background background("test");
  for (int i = 1; i <= 100; ++i) {
    background.post([&] { ++done; });
    ASSERT_TRUE(eventually([&] { return done == i; }));
  }
}

TEST(Background, EndsWithTheTaskThatHasBegun) {
  std::atomic<bool> begun{false};
  std::atomic<bool> let_go{false};
  std::atomic<int> done{0};
  std::thread releases;
  {
    Background background("test");
    background.post([&] {
      begun = true;
      while (!let_go) std::this_thread::yield();
      ++done;
    });
    ASSERT_TRUE(eventually([&] { return begun.load(); }));
    background.post([&] { ++done; });
    releases = std::thread([&] {
      std::this_thread::sleep_for(20ms);  // so that the end below has most likely begun
      let_go = true;
    });
  }
  EXPECT_GE(done, 1);
  releases.join();
}

TEST(Background, RunsAsManyTasksAtOnceAsItHasThreads) {
  std::atomic<int> begun{0};
  std::atomic<bool> let_go{false};
  Background background("test", 3, 1ms);
  for (int i = 0; i != 4; ++i) {
    background.post([&] {
      ++begun;
      while (!let_go) std::this_thread::yield();
    });
  }
  EXPECT_TRUE(eventually([&] { return begun == 3; })) << begun;
  let_go = true;
  EXPECT_TRUE(eventually([&] { return begun == 4; })) << begun;
}

TEST(Background, GoesOnAfterItsThreadsHaveWaitedInVain) {
  std::atomic<int> done{0};
  Background background("test", 2, 0ms);
  for (int i = 2; i <= 100; i += 2) {
    background.post([&] { ++done; });
    background.post([&] { ++done; });
    ASSERT_TRUE(eventually([&] { return done == i; }));
  }
}

// Also where no thread has time for it, or none is left.
TEST(BackgroundShare, CallsEachPartOnce) {
  Background background("test", 3, 100ms);
  std::atomic<bool> let_go{false};
  for (const bool busy : {false, true}) {
    for (int i = 0; busy && i != 3; ++i) {
      background.post([&] {
        while (!let_go) std::this_thread::yield();
      });
    }
    for (const std::size_t parts : {0, 1, 2, 3, 1000}) {
      std::vector<std::atomic<int>> calls(parts);
      background.share(parts, [&](std::size_t part) { ++calls[part]; });
      for (std::size_t i = 0; i != parts; ++i) ASSERT_EQ(calls[i], 1) << i << " of " << parts;
    }
  }
  let_go = true;
  background.stop();
  int calls = 0;
  background.share(3, [&](std::size_t) { ++calls; });
  EXPECT_EQ(calls, 3);
}

TEST(BackgroundShare, IsDoneByOtherThreadsToo) {
  Background background("test", 2, 100ms);
  std::atomic<int> present{0};
  background.share(2, [&](std::size_t) {  // each waits for the other
    ++present;
    EXPECT_TRUE(eventually([&] { return present == 2; }));
  });
}

TEST(Background, NeedsNoTask) { Background background("test"); }

}  // namespace
}  // namespace p2p
