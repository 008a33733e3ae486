// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Unpacking on a GPU: right bytes, and how fast. Figures are printed, not judged: they belong to the machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"
#include "drivers/cuda/stream.h"
#include "kernels/unpack.h"

namespace p2p {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBytes = std::size_t{256} << 20;

/// Launches that a figure comes from; GPU_UNPACK_ROUNDS for tools under which each takes long.
int rounds() {
  const char* const given = std::getenv("GPU_UNPACK_ROUNDS");
  return given != nullptr ? std::max(std::atoi(given), 1) : 20;
}

class GpuUnpack : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto available = cuda::available(); !available) GTEST_SKIP() << available.error().message;
    guard_.emplace(0);
    stream_ = *cuda::Stream::open(0, cuda::Stream::Priority::kHigh);
    target_ = *cuda::DeviceBuffer::allocate(0, kBytes);
    list_ = *cuda::DeviceBuffer::allocate(0, kBytes / kPage * sizeof(kernels::CopyBlock));
  }

  /// Pages of the message in any order of the pool; `block` bytes each go to places in any order.
  std::vector<kernels::CopyBlock> plan(const std::byte* pool, std::size_t block) const {
    std::mt19937_64 random(7);
    std::vector<std::uint32_t> pages(kBytes / kPage);
    std::iota(pages.begin(), pages.end(), 0U);
    std::ranges::shuffle(pages, random);
    std::vector<kernels::Fragment> fragments;
    for (std::size_t index = 0; index < pages.size(); ++index) {
      fragments.push_back({static_cast<std::uint32_t>(pages[index] * kPage), kPage, index * kPage});
    }
    std::vector<std::size_t> places(kBytes / block);
    std::iota(places.begin(), places.end(), std::size_t{0});
    std::ranges::shuffle(places, random);
    std::vector<kernels::Block> blocks;
    for (std::size_t index = 0; index < places.size(); ++index) {
      blocks.push_back({index * block, block, target_.data() + places[index] * block});
    }
    std::vector<kernels::CopyBlock> copies;
    EXPECT_EQ(kernels::plan_unpack(pool, fragments, blocks, copies), kBytes);
    return copies;
  }

  /// GB/s of payload.
  double measure(const std::vector<kernels::CopyBlock>& copies, unsigned processors) {
    EXPECT_TRUE(cuda::copy_now(list_.data(), copies.data(), copies.size() * sizeof(kernels::CopyBlock)));
    const kernels::CopyList list{.blocks = reinterpret_cast<const kernels::CopyBlock*>(list_.data()),
                                 .count = copies.size(),
                                 .total = kBytes,
                                 .largest = copies.front().bytes};
    const auto launch = [&] {
      EXPECT_EQ(kernels::launch_copy(list, {.ctas = processors}, {}, stream_.handle()), 0);
    };
    launch();
    EXPECT_TRUE(stream_.synchronize());
    const auto start = std::chrono::steady_clock::now();
    for (int round = rounds(); round > 0; --round) launch();
    EXPECT_TRUE(stream_.synchronize());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return rounds() * static_cast<double>(kBytes) / took.count() / 1e9;
  }

  /// True if the target's bytes are those that the processor would have copied.
  static bool same(const std::vector<kernels::CopyBlock>& copies) {
    std::mt19937 random(3);
    std::vector<std::byte> from(kPage);
    std::vector<std::byte> to(kPage);
    for (int round = 0; round < 200; ++round) {
      const kernels::CopyBlock& copy = copies[random() % copies.size()];
      const std::size_t bytes = std::min<std::size_t>(copy.bytes, kPage);
      if (!cuda::copy_now(from.data(), copy.source, bytes) || !cuda::copy_now(to.data(), copy.target, bytes))
        return false;
      if (!std::equal(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(bytes), to.begin()))
        return false;
    }
    return true;
  }

  static std::vector<std::byte> noise() {
    std::vector<std::byte> bytes(kBytes);
    std::mt19937_64 random(11);
    for (std::size_t at = 0; at < kBytes; at += 8) {
      const std::uint64_t word = random();
      std::memcpy(bytes.data() + at, &word, 8);
    }
    return bytes;
  }

  std::optional<cuda::DeviceGuard> guard_;
  cuda::Stream stream_;
  cuda::DeviceBuffer target_;
  cuda::DeviceBuffer list_;
};

TEST_F(GpuUnpack, FromDeviceMemory) {
  const auto pool = cuda::DeviceBuffer::allocate(0, kBytes);
  ASSERT_TRUE(pool) << pool.error().message;
  ASSERT_TRUE(cuda::copy_now(pool->data(), noise().data(), kBytes));
  for (const std::size_t block : {kPage, 4 * kPage}) {
    const auto copies = plan(pool->data(), block);
    std::printf("figure unpack pool=device pages=4096 blocks=%zu processors=all GB/s=%.0f\n", block,
                measure(copies, 0));
    EXPECT_TRUE(same(copies));
  }
  const auto copies = plan(pool->data(), 4 * kPage);
  for (const unsigned processors : {1U, 2U, 3U}) {
    std::printf("figure unpack pool=device pages=4096 blocks=16384 processors=%u GB/s=%.1f\n", processors,
                measure(copies, processors));
  }
}

TEST_F(GpuUnpack, FromPinnedHostMemory) {
  const auto pool = cuda::HostBuffer::allocate(kBytes);
  ASSERT_TRUE(pool) << pool.error().message;
  const auto bytes = noise();
  std::memcpy(pool->data(), bytes.data(), kBytes);
  const auto copies = plan(pool->data(), 4 * kPage);
  for (const unsigned processors : {0U, 3U}) {
    std::printf("figure unpack pool=pinned pages=4096 blocks=16384 processors=%u GB/s=%.1f\n", processors,
                measure(copies, processors));
  }
  EXPECT_TRUE(same(copies));
}

TEST(Unpack, PlanningAReceive) {
  std::vector<kernels::Fragment> fragments;
  for (std::uint32_t at = 0; at < (512U << 10); at += kPage)
    fragments.push_back({at ^ (1U << 12), kPage, at});
  std::vector<std::byte> target(512 << 10);
  const kernels::Block block{0, target.size(), target.data()};
  std::vector<kernels::CopyBlock> copies;
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0; round < 1000; ++round) {
    copies.clear();
    ASSERT_TRUE(kernels::fills(fragments, target.size()));
    ASSERT_EQ(kernels::plan_unpack(target.data(), fragments, {&block, 1}, copies), target.size());
  }
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  std::printf("figure plan receive=512K fragments=128 us=%.2f\n", took.count() / 1000);
}

}  // namespace
}  // namespace p2p
