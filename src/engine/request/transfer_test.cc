// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/request/transfer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;

TEST(Transfer, WaitsForItsEnd) {
  TransferState state(7);
  EXPECT_EQ(state.wait(1ms).error().code, ErrorCode::kTimedOut);
  std::thread other([&] { state.finish({}); });
  EXPECT_TRUE(state.wait(10s));
  EXPECT_TRUE(state.wait(0s));
  other.join();
}

TEST(Transfer, KeepsItsFirstOutcome) {
  TransferState state;
  state.finish(tl::unexpected(Error{ErrorCode::kPeerGone, "gone"}));
  state.finish({});
  ASSERT_FALSE(state.status());
  EXPECT_EQ(state.status().error().code, ErrorCode::kPeerGone);
}

TEST(Transfer, CallsBackOnceWhetherBeforeOrAfter) {
  TransferState state;
  int calls = 0;
  state.on_done([&] { ++calls; });
  state.finish({});
  state.on_done([&] { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST(Transfer, CancelsOnceAndAlsoWhenAskedTooEarly) {
  TransferState early;
  early.cancel();
  int calls = 0;
  early.set_cancel([&] { ++calls; });
  EXPECT_EQ(calls, 1);
  early.cancel();
  EXPECT_EQ(calls, 1);

  TransferState ended;
  ended.set_cancel([&] { ++calls; });
  ended.finish({});
  ended.cancel();
  EXPECT_EQ(calls, 1);
}

TEST(Transfer, ManyWaitersAllWake) {
  for (int round = 0; round < 200; ++round) {
    TransferState state;
    std::atomic<int> woken{0};
    std::vector<std::thread> waiters;
    for (int i = 0; i < 4; ++i) {
      waiters.emplace_back([&] { woken += state.wait(10s).has_value(); });
    }
    state.finish({});
    for (auto& waiter : waiters) waiter.join();
    ASSERT_EQ(woken, 4);
  }
}

}  // namespace
}  // namespace p2p::engine
