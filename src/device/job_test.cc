// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/job.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "base/error.h"
#include "drivers/cuda/device.h"

namespace p2p::device {
namespace {

using namespace std::chrono_literals;

TEST(Job, HasEndedWellBeforeAnythingWasStarted) {
  Job job;
  EXPECT_TRUE(job.finished());
  EXPECT_TRUE(job.status());
  job.refuse({ErrorCode::kUnavailable, "as the test asked"});
  EXPECT_TRUE(job.finished());
  ASSERT_FALSE(job.status());
  EXPECT_EQ(job.status().error().message, "as the test asked");
}

TEST(Job, SaysWhyADeviceHasNoCopierAndAsksAgain) {
  std::vector<int> asked;
  Copiers all({}, [&](int device, const Copier::Limits&) -> Result<std::unique_ptr<Copier>> {
    asked.push_back(device);
    return fail(ErrorCode::kUnavailable, "no copier");
  });
  OwnCopiers own(all);
  Job job;
  for (const int device : {3, 3}) {
    const auto part = job.part(own, device);
    ASSERT_FALSE(part);
    EXPECT_EQ(part.error().message, "no copier");
  }
  EXPECT_EQ(asked, (std::vector<int>{3, 3}));
}

class JobOnDevice : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = 10000;

  void SetUp() override {
    if (const auto available = cuda::available(); !available) GTEST_SKIP() << available.error().message;
    memory_ = cuda::DeviceBuffer::allocate(0, 2 * kBytes, true).value();
    ASSERT_TRUE(cuda::copy_now(memory_.data(), std::vector<std::byte>(kBytes, std::byte{7}).data(), kBytes));
    for (auto* copier : {&one_, &other_}) *copier = Copier::open(0, {.blocks = 4, .lists = 1}).value();
  }

  kernels::CopyBlock block() const { return {memory_.data(), memory_.data() + kBytes, kBytes}; }

  std::vector<std::byte> target() const {
    std::vector<std::byte> bytes(kBytes);
    EXPECT_TRUE(cuda::copy_now(bytes.data(), memory_.data() + kBytes, kBytes));
    return bytes;
  }

  static bool ends(Job& job) {
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (!job.finished()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
    }
    return true;
  }

  cuda::DeviceBuffer memory_;
  std::unique_ptr<Copier> one_;
  std::unique_ptr<Copier> other_;
};

TEST_F(JobOnDevice, EndsWithAllItsPartsAndTheErrorOfOne) {
  Job job;
  job.part(*one_).add(block());
  job.part(*other_).add({memory_.data(), memory_.data(), std::uint64_t{1} << 40});  // beyond what there is
  job.start();
  ASSERT_TRUE(ends(job));
  EXPECT_FALSE(job.status());
  EXPECT_EQ(target(), std::vector<std::byte>(kBytes, std::byte{7}));
  EXPECT_TRUE(one_->unused() && other_->unused());
}

TEST_F(JobOnDevice, WhatIsRefusedIsNotCopied) {
  Job job;
  job.part(*one_).add(block());
  job.refuse({ErrorCode::kUnavailable, "as the test asked"});
  job.start();
  EXPECT_TRUE(job.finished());
  EXPECT_FALSE(job.status());
  EXPECT_EQ(target(), std::vector<std::byte>(kBytes));
  EXPECT_TRUE(one_->unused());
}

TEST_F(JobOnDevice, IsToldThatAllListsAreInUse) {
  Job first;
  first.part(*one_).add(block());
  first.start();
  Job second;
  EXPECT_EQ(second.part(*one_).list, nullptr);
  ASSERT_TRUE(ends(first));
  EXPECT_NE(second.part(*one_).list, nullptr);
  second.drop();
  EXPECT_TRUE(one_->unused());
}

}  // namespace
}  // namespace p2p::device
