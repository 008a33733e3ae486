// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/standby.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "device/copier.h"
#include "drivers/cuda/device.h"

namespace p2p::device {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

TEST(StandbyOrder, EveryWordTellsItsNumber) {
  constexpr std::uint64_t kField = 0x7fff'1234'5678;
  EXPECT_EQ(kernels::tagged(kField, 3) & kernels::kFieldMask, kField);
  EXPECT_EQ(kernels::tagged(kField, 3) >> kernels::kFieldBits, 3u);
  EXPECT_EQ(kernels::tagged(kField, 0x2'0003) >> kernels::kFieldBits, 3u);
  EXPECT_NE(kernels::tagged(0, 1 + kernels::kOrders) >> kernels::kFieldBits,
            kernels::tagged(0, 1) >> kernels::kFieldBits);
}

TEST(StandbyOpen, SaysWhyThereIsNone) {
  if (cuda::available()) GTEST_SKIP() << "there is a CUDA device";
  const auto standby = Standby::open(0, {.ctas = 4});
  ASSERT_FALSE(standby);
  EXPECT_EQ(standby.error().code, ErrorCode::kUnavailable);
}

class OnDevice : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = std::size_t{8} << 20;

  void SetUp() override {
    if (const Status status = cuda::available(); !status) GTEST_SKIP() << status.error().message;
    const int far = cuda::device_count() > 1 && cuda::reaches(0, 1) ? 1 : 0;
    ASSERT_TRUE(cuda::enable_peer(0, far));
    source_ = cuda::DeviceBuffer::allocate(0, kBytes).value();
    target_ = cuda::DeviceBuffer::allocate(far, kBytes, true).value();
    content_ = random_bytes(kBytes, 1);
    expected_.resize(kBytes);
    ASSERT_TRUE(cuda::copy_now(source_.data(), content_.data(), kBytes));
  }

  kernels::CopyBlock block(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
    std::memcpy(expected_.data() + to, content_.data() + from, bytes);
    return {source_.data() + from, target_.data() + to, bytes};
  }

  void expect_target() {
    Bytes got(kBytes);
    ASSERT_TRUE(cuda::copy_now(got.data(), target_.data(), kBytes));
    EXPECT_TRUE(got == expected_);
  }

  cuda::DeviceBuffer source_;
  cuda::DeviceBuffer target_;
  Bytes content_;
  Bytes expected_;
};

/// Asks until the kernel takes the order.
Standby::Number insist(Standby& standby, const kernels::CopyBlock& block) {
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (std::chrono::steady_clock::now() < deadline) {
    if (const auto number = standby.order(block)) return *number;
  }
  ADD_FAILURE() << "no kernel takes orders";
  return 0;
}

void wait(Standby& standby, Standby::Number number) {
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (!standby.finished(number)) ASSERT_LT(std::chrono::steady_clock::now(), deadline) << number;
}

TEST_F(OnDevice, TakesOrdersOnlyInQuickSuccession) {
  auto standby = Standby::open(0, {.ctas = 16}).value();
  EXPECT_FALSE(standby->order(block(0, 0, 64)));
  EXPECT_FALSE(standby->running());
  ASSERT_NO_FATAL_FAILURE(wait(*standby, insist(*standby, block(0, 0, 64))));
  EXPECT_TRUE(standby->running());
  // The kernel ends by itself; whatever comes next is not kept waiting.
  EXPECT_TRUE(cuda::copy_now(target_.data(), source_.data(), 64));
  ASSERT_NO_FATAL_FAILURE(wait(*standby, insist(*standby, block(100, 200, 3000))));
  expect_target();
}

TEST_F(OnDevice, AnySizeAndAlignment) {
  auto standby = Standby::open(0, {.ctas = 16}).value();
  std::uint64_t at = 0;
  for (const std::uint64_t size :
       {1, 2, 15, 16, 17, 511, 512, 513, 4095, 4097, 65536, 65537, 131072, 131073, 1 << 20, (1 << 20) + 7}) {
    for (const std::uint64_t off : {0, 1, 4, 8, 13}) {
      if (at + size + 64 > kBytes) at = 0;
      const std::uint64_t to = at + (off * 7) % 16;
      ASSERT_NO_FATAL_FAILURE(wait(*standby, insist(*standby, block(kBytes - size - off, to, size)))) << size;
      at += size + 32;
    }
  }
  expect_target();
}

// What it copies has changed since it last looked: nothing stale comes from a cache.
TEST_F(OnDevice, SeesWhatWasWrittenMeanwhile) {
  auto standby = Standby::open(0, {.ctas = 16}).value();
  for (unsigned round = 0; round < 200; ++round) {
    const Bytes fresh = random_bytes(4096, round + 100);
    ASSERT_TRUE(cuda::copy_now(source_.data(), fresh.data(), fresh.size()));
    std::memcpy(content_.data(), fresh.data(), fresh.size());
    ASSERT_NO_FATAL_FAILURE(wait(*standby, insist(*standby, block(0, round * 4096 % kBytes, 4096))));
  }
  expect_target();
}

// Longer than one kernel lives, with as many under way as there is room for.
TEST_F(OnDevice, ManyUnderWayAndManyKernels) {
  auto standby = Standby::open(0, {.ctas = 8}).value();
  std::mt19937 random(3);
  std::deque<Standby::Number> flying;
  std::size_t taken = 0;
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (taken < 20'000 && std::chrono::steady_clock::now() < deadline) {
    const std::uint64_t size = 1 + random() % 20'000;
    const std::uint64_t from = random() % (kBytes - size);
    // Each has bytes of its own, so that their order does not matter.
    const std::uint64_t to = taken % 400 * 20'000;
    const kernels::CopyBlock next{source_.data() + from, target_.data() + to, size};
    const auto number = standby->order(next);
    if (number) {
      std::memcpy(expected_.data() + to, content_.data() + from, size);
      flying.push_back(*number);
      ++taken;
    }
    while (!flying.empty() && standby->finished(flying.front())) flying.pop_front();
  }
  EXPECT_EQ(taken, 20'000u);
  while (!flying.empty()) {
    ASSERT_NO_FATAL_FAILURE(wait(*standby, flying.front()));
    flying.pop_front();
  }
  expect_target();
}

// A process that stood still between its look at the clock and the order: the kernel has ended by itself.
TEST_F(OnDevice, OrderThatNoKernelSawIsLost) {
  auto standby = Standby::open(0, {.ctas = 16}).value();
  ASSERT_NO_FATAL_FAILURE(wait(*standby, insist(*standby, block(0, 0, 64))));
  const auto before = Standby::Clock::now();
  std::this_thread::sleep_for(20ms);  // longer than a kernel waits for an order
  const kernels::CopyBlock unseen{source_.data() + 64, target_.data() + 64, 64};
  std::optional<Standby::Number> number = standby->order(unseen, before);
  if (!number) GTEST_SKIP() << "the kernel had been renewed just before";
  for (int more = 0; more < 100; ++more) EXPECT_FALSE(standby->order(unseen));
  EXPECT_FALSE(standby->finished(*number));
  const auto lost = standby->lost(*number);
  ASSERT_TRUE(lost) << lost.error().message;
  EXPECT_TRUE(*lost);
  expect_target();
  ASSERT_NO_FATAL_FAILURE(wait(*standby, insist(*standby, block(500, 600, 64))));
  expect_target();
}

// Kernels whose start nobody noticed, since nothing was ordered meanwhile, hold no places for ever.
TEST_F(OnDevice, TakesOrdersAfterManyStarts) {
  auto standby = Standby::open(0, {.ctas = 16}).value();
  for (std::uint32_t i = 0; i < 2 * kernels::kOrders; ++i) standby->rehearse();
  ASSERT_NO_FATAL_FAILURE(wait(*standby, insist(*standby, block(100, 200, 3000))));
  expect_target();
}

TEST_F(OnDevice, CopiersOfManyThreadsShareOne) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kRounds = 3000;
  constexpr std::size_t kSize = 20'000;
  std::shared_ptr<Standby> standby = Standby::open(0, {.ctas = 16}).value();
  std::vector<std::thread> threads;
  std::memcpy(expected_.data(), content_.data(), kThreads * kSize * 50);
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto copier =
          Copier::open(0, {.grid = {.ctas = 4}, .blocks = 4, .lists = 2, .standby_bytes = kSize}, standby)
              .value();
      for (std::size_t round = 0; round < kRounds; ++round) {
        auto* const list = copier->take();
        const std::size_t at = (t * 50 + round % 50) * kSize;
        copier->add(*list, {source_.data() + at, target_.data() + at, kSize},
                    Ways{.bulk_bytes = 1 << 25, .standby_bytes = kSize});
        copier->start(*list);
        const auto deadline = std::chrono::steady_clock::now() + 10s;
        while (!copier->finished(*list)) ASSERT_LT(std::chrono::steady_clock::now(), deadline);
        ASSERT_TRUE(list->status()) << list->status().error().message;
        copier->give_back(*list);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Orders are numbered, and so is each start of the kernel, of which there are few.
  const Standby::Number last = insist(*standby, block(0, 0, 64));
  EXPECT_GT(last, 100U) << "it took the copiers' orders";
  ASSERT_NO_FATAL_FAILURE(wait(*standby, last));
  expect_target();
}

// Its end waits for its own orders; the kernel goes on for the others.
TEST_F(OnDevice, CopierThatEndsEarlyWaitsForItsOrder) {
  std::shared_ptr<Standby> standby = Standby::open(0, {.ctas = 1}).value();
  for (int round = 0; round < 200; ++round) {
    auto copier =
        Copier::open(0, {.grid = {.ctas = 4}, .blocks = 4, .lists = 2, .standby_bytes = kBytes}, standby)
            .value();
    ASSERT_NO_FATAL_FAILURE(wait(*standby, insist(*standby, block(0, 0, 64))));
    auto* const list = copier->take();
    copier->add(*list, block(0, 0, kBytes / 2), Ways{.bulk_bytes = 1 << 25, .standby_bytes = kBytes});
    copier->start(*list);
    copier.reset();
    ASSERT_TRUE(cuda::copy_now(target_.data(), source_.data() + kBytes / 2, kBytes / 2));
  }
  std::memcpy(expected_.data(), content_.data() + kBytes / 2, kBytes / 2);
  expect_target();
}

TEST_F(OnDevice, CopierUsesItAndGoesWithoutIt) {
  auto copier = Copier::open(0, {.grid = {.ctas = 16},
                                 .bulk_bytes = 1 << 25,
                                 .bulk_count = 1,
                                 .blocks = 16,
                                 .lists = 4,
                                 .standby_ctas = 16})
                    .value();
  for (std::uint64_t round = 0; round < 3000; ++round) {
    auto* const list = copier->take();
    ASSERT_NE(list, nullptr);
    const std::uint64_t at = round * 2048 % kBytes;
    copier->add(*list, block(at, kBytes - 2048 - at, 2048));
    copier->start(*list);
    const auto deadline = std::chrono::steady_clock::now() + 10s;
    while (!copier->finished(*list)) ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    ASSERT_TRUE(list->status()) << list->status().error().message;
    copier->give_back(*list);
    if (round % 1000 == 999) std::this_thread::sleep_for(1ms);  // beyond the kernel's idle time
  }
  expect_target();
}

}  // namespace
}  // namespace p2p::device
