// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/item_queue.h"

#include <gtest/gtest.h>

#include "engine/schedule/lane_testing.h"

namespace p2p::engine {
namespace {

constexpr std::uint64_t kKibibyte = 1024;

/// A queue and its clock.
class ItemQueueTest : public ::testing::Test {
 protected:
  ~ItemQueueTest() override {
    queue_.refuse_all({{ErrorCode::kCancelled, "the test ends"}}, actions_);
    actions_.run();
  }

  std::shared_ptr<TransferState> push(std::uint64_t bytes, Priority priority, std::uint64_t rate = 0) {
    auto list = std::make_shared<SegmentList>();
    list->bytes = bytes;
    list->portions.push_back({.segments = {{.size = bytes}}, .bytes = bytes});
    auto state = std::make_shared<TransferState>(bytes);
    const auto request = std::make_shared<Request>(
        finisher_, Request::Post{.list = list, .state = state, .priority = priority, .rate = rate});
    queue_.push({.request = request, .batch = {.segments = list->portions[0].segments, .bytes = bytes}});
    return state;
  }

  /// Takes a batch of 64 KiB at most; of none 0 bytes.
  WorkItem take() {
    const auto choice = queue_.first(now_);
    if (!choice) return {};
    auto item = queue_.take(choice->priority, policy_, {{64 * kKibibyte, 8}, 1, now_}, actions_);
    return item ? std::move(*item) : WorkItem{};
  }

  /// The class of the next batch, which ends at once.
  Priority next() {
    WorkItem item = take();
    EXPECT_TRUE(item.request);
    const Priority priority = item.request->priority();
    item.close(actions_);
    return priority;
  }

  ItemQueue::Clock::time_point now_{1h};
  Policy policy_ = Policy::spread({64 * kKibibyte, 8}, 50us);
  std::shared_ptr<Finisher> finisher_ = std::make_shared<Finisher>();
  PostUnlockActions actions_;
  ItemQueue queue_;
};

TEST_F(ItemQueueTest, HigherClassesGoFirst) {
  push(2 * 64 * kKibibyte, Priority::kLow);
  push(2 * 64 * kKibibyte, Priority::kNormal);
  EXPECT_EQ(next(), Priority::kNormal);
  push(kKibibyte, Priority::kHigh);
  EXPECT_EQ(next(), Priority::kHigh);
  EXPECT_EQ(next(), Priority::kNormal);
  EXPECT_EQ(next(), Priority::kLow);
  EXPECT_EQ(next(), Priority::kLow);
  EXPECT_TRUE(queue_.empty());
}

TEST_F(ItemQueueTest, NoClassWaitsForEver) {
  for (const Priority priority : {Priority::kHigh, Priority::kNormal, Priority::kLow}) {
    push(std::uint64_t{1} << 40, priority);
  }
  std::array<int, 3> batches{};
  std::array<ItemQueue::Clock::time_point, 3> last{now_, now_, now_};
  for (int i = 0; i != 10'000; ++i, now_ += 100us) {
    const Priority priority = next();
    ++batches[to_underlying(priority)];
    last[to_underlying(priority)] = now_;
    for (const auto at : last) ASSERT_LE(now_ - at, ItemQueue::kPatience + 1ms);
  }
  EXPECT_GE(batches[0], 9'900);
  EXPECT_GE(batches[1], 18);
  EXPECT_GE(batches[2], 18);
}

// A channel had no room for it: it is the first that the next one with room gets.
TEST_F(ItemQueueTest, WhatWasOwedStaysOwedUntilAChannelTakesIt) {
  push(std::uint64_t{1} << 40, Priority::kHigh);
  push(64 * kKibibyte, Priority::kLow);
  EXPECT_EQ(next(), Priority::kHigh);
  now_ += ItemQueue::kPatience;
  WorkItem low = take();
  EXPECT_EQ(low.request->priority(), Priority::kLow);
  queue_.put_back(std::move(low));
  EXPECT_EQ(next(), Priority::kLow);
  EXPECT_EQ(next(), Priority::kHigh);
}

TEST_F(ItemQueueTest, WhatWasNotOwedAndCameBackGoesBehindAHigherClass) {
  push(64 * kKibibyte, Priority::kLow);
  WorkItem low = take();
  queue_.put_back(std::move(low));
  push(kKibibyte, Priority::kHigh);
  EXPECT_EQ(next(), Priority::kHigh);
  EXPECT_EQ(next(), Priority::kLow);
}

TEST_F(ItemQueueTest, PacedOnesKeepTheirRate) {
  for (const std::uint64_t rate :
       {std::uint64_t{100'000}, std::uint64_t{10'000'000}, std::uint64_t{4'000'000'000}}) {
    const std::uint64_t bytes = rate / 2;
    push(bytes, Priority::kNormal, rate);
    const auto start = now_;
    std::uint64_t moved = 0;
    while (!queue_.empty()) {
      WorkItem item = take();
      if (item.request) {
        moved += item.batch.bytes;
        item.close(actions_);
      } else {
        ASSERT_TRUE(queue_.next_due());
        ASSERT_GT(*queue_.next_due(), now_);
        now_ = *queue_.next_due() + 1ms;  // timers are late
      }
      const double allowed =
          std::chrono::duration<double>(now_ - start + 10ms).count() * static_cast<double>(rate);
      ASSERT_LE(static_cast<double>(moved), allowed + 16.0 * kKibibyte) << rate;
    }
    EXPECT_EQ(moved, bytes);
    EXPECT_GE(now_ - start, 300ms) << rate;
    EXPECT_LE(now_ - start, 510ms) << rate;
  }
}

TEST_F(ItemQueueTest, ARestingOneThatIsCancelledEnds) {
  const auto state = push(64 * kKibibyte, Priority::kNormal, 1);
  take().close(actions_);
  EXPECT_FALSE(queue_.first(now_));
  EXPECT_EQ(queue_.size(), 1U);
  state->cancel();
  EXPECT_FALSE(take().request);
  EXPECT_TRUE(queue_.empty());
  actions_.run();
  EXPECT_TRUE(state->done());
}

}  // namespace
}  // namespace p2p::engine
