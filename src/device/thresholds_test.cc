// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/thresholds.h"

#include <gtest/gtest.h>

#include <chrono>

#include "device/trial.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"

namespace p2p::device {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr Ways kFallback{.bulk_bytes = 32 * kMiB, .standby_bytes = 4 * kMiB};

TEST(ChooseWays, KeepsWhatWasNotMeasured) {
  const Ways ways = choose_ways({}, kFallback);
  EXPECT_EQ(ways.bulk_bytes, kFallback.bulk_bytes);
  EXPECT_EQ(ways.standby_bytes, kFallback.standby_bytes);
  const Ways lists_only = choose_ways({.lists = {{4 * kMiB, 10, 20}}, .singles = {}}, kFallback);
  EXPECT_EQ(lists_only.bulk_bytes, 4 * kMiB);
  EXPECT_EQ(lists_only.standby_bytes, kFallback.standby_bytes);
}

TEST(ChooseWays, TakesTheEngineFromWhereItIsNoSlower) {
  const auto bulk = [](std::vector<Timing> lists) {
    return choose_ways({.lists = std::move(lists), .singles = {}}, kFallback).bulk_bytes;
  };
  EXPECT_EQ(bulk({{4 * kMiB, 70, 50}, {16 * kMiB, 200, 190}, {32 * kMiB, 350, 360}}), 32 * kMiB);
  EXPECT_EQ(bulk({{4 * kMiB, 70, 50}, {16 * kMiB, 180, 190}, {32 * kMiB, 350, 360}}), 16 * kMiB);
  EXPECT_EQ(bulk({{4 * kMiB, 40, 50}, {16 * kMiB, 180, 190}, {32 * kMiB, 350, 360}}), 4 * kMiB);
  // A tie within the scatter goes to the engine.
  EXPECT_EQ(bulk({{4 * kMiB, 70, 50}, {16 * kMiB, 101, 100}}), 16 * kMiB);
  // One lucky size in the middle does not count: larger ones speak against it.
  EXPECT_EQ(bulk({{4 * kMiB, 40, 50}, {16 * kMiB, 200, 100}, {32 * kMiB, 350, 360}}), 32 * kMiB);
}

TEST(ChooseWays, LooksBeyondWhatItMeasuredIfTheKernelWinsThroughout) {
  EXPECT_EQ(choose_ways({.lists = {{4 * kMiB, 70, 50}, {32 * kMiB, 400, 300}}, .singles = {}}, kFallback)
                .bulk_bytes,
            64 * kMiB);
  EXPECT_EQ(choose_ways({.lists = {{4 * kMiB, 70, 50}}, .singles = {}}, kFallback).bulk_bytes, 32 * kMiB);
}

TEST(ChooseWays, LetsTheKernelStandByUpToWhereItIsNoSlower) {
  const auto standby = [](std::vector<Timing> singles) {
    return choose_ways({.lists = {}, .singles = std::move(singles)}, kFallback).standby_bytes;
  };
  EXPECT_EQ(standby({{kMiB, 10, 7}, {2 * kMiB, 13, 11}, {4 * kMiB, 18, 19}, {8 * kMiB, 28, 40}}), 2 * kMiB);
  EXPECT_EQ(standby({{kMiB, 10, 7}, {2 * kMiB, 13, 13}, {4 * kMiB, 18, 18}}), 4 * kMiB);
  EXPECT_EQ(standby({{kMiB, 10, 7}, {2 * kMiB, 13, 20}, {4 * kMiB, 18, 5}}), kMiB);
  EXPECT_EQ(standby({{kMiB, 10, 17}, {2 * kMiB, 13, 20}}), kMiB / 2);
}

class TrialOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status status = cuda::available(); !status) GTEST_SKIP() << status.error().message;
    far_ = cuda::device_count() > 1 && cuda::reaches(0, 1) ? 1 : 0;
    ASSERT_TRUE(cuda::enable_peer(0, far_));
    source_ = cuda::DeviceBuffer::allocate(far_, kTrialBytes).value();
    sink_ = cuda::DeviceBuffer::allocate(0, kTrialBytes).value();
    copier_ = Copier::open(0, {.grid = {.ctas = 64},
                               .bulk_bytes = 32 * kMiB,
                               .bulk_count = 1,
                               .blocks = 64,
                               .lists = 4,
                               .standby_ctas = 16})
                  .value();
  }

  Result<Timings> try_up_to(
      std::uint64_t bytes, std::chrono::nanoseconds time,
      const std::function<bool()>& undisturbed = [] { return true; }) {
    return try_ways(*copier_, {source_.data(), sink_.data(), bytes}, time, undisturbed);
  }

  int far_ = 0;
  cuda::DeviceBuffer source_;
  cuda::DeviceBuffer sink_;
  std::unique_ptr<Copier> copier_;
};

TEST_F(TrialOnDevice, TimesAllSizes) {
  const auto timings = try_up_to(kTrialBytes, std::chrono::seconds(5));
  ASSERT_TRUE(timings) << timings.error().message;
  ASSERT_FALSE(timings->lists.empty());
  EXPECT_EQ(timings->lists.back().bytes, kTrialBytes);
  ASSERT_FALSE(timings->singles.empty());
  for (const auto* all : {&timings->lists, &timings->singles}) {
    std::uint64_t before = 0;
    for (const Timing& each : *all) {
      EXPECT_GT(each.bytes, before);
      EXPECT_GT(each.engine_us, 0);
      EXPECT_GT(each.kernel_us, 0);
      before = each.bytes;
    }
  }
  EXPECT_TRUE(copier_->unused());
}

TEST_F(TrialOnDevice, StaysWithinShortMemoryAndTime) {
  const auto small = try_up_to(2 * kMiB, std::chrono::seconds(5));
  ASSERT_TRUE(small) << small.error().message;
  EXPECT_TRUE(small->lists.empty());
  for (const Timing& each : small->singles) EXPECT_LE(each.bytes, 2 * kMiB);
  const auto hurried = try_up_to(kTrialBytes, std::chrono::seconds(0));
  ASSERT_TRUE(hurried) << hurried.error().message;
  EXPECT_TRUE(hurried->lists.empty());
  EXPECT_TRUE(hurried->singles.empty());
}

TEST_F(TrialOnDevice, EndsWhenThereIsOtherWork) {
  int copies = 0;
  const auto disturbed = try_up_to(kTrialBytes, std::chrono::seconds(5), [&] { return ++copies < 5; });
  ASSERT_FALSE(disturbed);
  EXPECT_EQ(disturbed.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(copies, 5);
  EXPECT_TRUE(copier_->unused());
}

}  // namespace
}  // namespace p2p::device
