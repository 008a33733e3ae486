// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/lifetime.h"

#include <gtest/gtest.h>

#include <vector>

#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"

namespace p2p::device {
namespace {

TEST(Lifetime, WhatCudaDoesNotKnowCountsAsThere) {
  std::vector<std::byte> memory(64);
  EXPECT_TRUE(Lifetime(memory.data(), 64, {}).check(RegionId{1}));
  EXPECT_TRUE(Lifetime(memory.data(), 64, {MemoryKind::kCuda, 0}).check(RegionId{1}));
}

TEST(Lifetime, OfDeviceMemoryEndsWhenItIsFreed) {
  if (const Status status = cuda::available(); !status) GTEST_SKIP() << status.error().message;
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  auto buffer = cuda::DeviceBuffer::allocate(0, kBytes).value();
  const Lifetime lifetime(buffer.data() + 100, 1000, {MemoryKind::kCuda, 0});
  EXPECT_TRUE(lifetime.check(RegionId{7}));
  buffer = cuda::DeviceBuffer();
  const Status freed = lifetime.check(RegionId{7});
  ASSERT_FALSE(freed);
  EXPECT_EQ(freed.error().code, ErrorCode::kNotFound);
  EXPECT_NE(freed.error().message.find("use region 7: its device memory at "), std::string::npos);
  buffer = cuda::DeviceBuffer::allocate(0, kBytes).value();  // most likely at the same address
  EXPECT_FALSE(lifetime.check(RegionId{7}));
  EXPECT_TRUE(Lifetime(buffer.data(), kBytes, {MemoryKind::kCuda, 0}).check(RegionId{8}));
}

}  // namespace
}  // namespace p2p::device
