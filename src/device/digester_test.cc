// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Digests of GPU memory against those that the host computes of the same bytes.
#include "device/digester.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "base/block_digest.h"
#include "drivers/cuda/device.h"

namespace p2p::device {
namespace {

using namespace std::chrono_literals;
using Ranges = std::vector<std::span<const std::byte>>;

class DigesterOnDevice : public ::testing::Test {
 protected:
  static constexpr std::size_t kSize = std::size_t{3} << 20;

  void SetUp() override {
    if (const Status available = cuda::available(); !available) GTEST_SKIP() << available.error().message;
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random_());
    auto memory = cuda::DeviceBuffer::allocate(0, kSize);
    ASSERT_TRUE(memory) << memory.error().message;
    memory_ = std::move(*memory);
    ASSERT_TRUE(cuda::copy_now(memory_.data(), bytes_.data(), kSize));
  }

  std::uint64_t draw(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
  }

  /// That of the device; of ranges of bytes_.
  Result<std::uint64_t> on_device(const Ranges& ranges) {
    Ranges there;
    for (const auto& range : ranges)
      there.emplace_back(memory_.data() + (range.data() - bytes_.data()), range.size());
    auto work = digester_->start(there);
    if (!work) return tl::unexpected(work.error());
    while (!(*work)->finished()) std::this_thread::yield();
    return (*work)->value();
  }

  static std::uint64_t on_host(const Ranges& ranges) {
    BlockDigest digest;
    for (const auto& range : ranges) digest.add(range);
    return digest.value();
  }

  std::mt19937_64 random_{11};
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kSize);
  cuda::DeviceBuffer memory_;
  std::shared_ptr<Digester> digester_ = Digester::make(0);
};

TEST_F(DigesterOnDevice, AnySizeAndAlignment) {
  std::vector<std::size_t> sizes{0, 1, 4095, 4096, 4097, 8192, 70'001, 2 << 20};
  for (std::size_t size = 2; size < 80; ++size) sizes.push_back(size);
  for (const std::size_t size : sizes) {
    for (const std::size_t offset : {0, 1, 2, 4, 7, 8, 16, 31}) {
      const Ranges one{std::span(bytes_).subspan(offset, size)};
      const auto digest = on_device(one);
      ASSERT_TRUE(digest) << digest.error().message;
      ASSERT_EQ(*digest, on_host(one)) << size << " bytes from " << offset << " on";
    }
  }
}

TEST_F(DigesterOnDevice, RandomRanges) {
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    // Few and long, as tensors are, to very many of some bytes, as columns of a matrix are.
    const std::uint64_t count = std::uint64_t{1} << draw(0, 12);
    const std::uint64_t longest = std::max<std::uint64_t>(kSize / count >> draw(0, 8), 1);
    Ranges ranges;
    for (std::uint64_t at = 0; at < count; ++at) {
      const std::uint64_t size = draw(0, longest), offset = draw(0, kSize - size);
      ranges.push_back(std::span(bytes_).subspan(offset, size));
    }
    const auto digest = on_device(ranges);
    ASSERT_TRUE(digest) << digest.error().message;
    ASSERT_EQ(*digest, on_host(ranges)) << count << " ranges of at most " << longest << " bytes";
  }
}

TEST_F(DigesterOnDevice, SeveralAtOnce) {
  std::vector<std::unique_ptr<Digester::Work>> works;
  for (std::size_t at = 0; at < 20; ++at) {
    const Ranges one{std::span<const std::byte>(memory_.data() + at, kSize - 3 * at)};
    auto work = digester_->start(one);
    ASSERT_TRUE(work) << work.error().message;
    works.push_back(std::move(*work));
    if (at % 5 == 4) works.erase(works.begin());  // waits for it
  }
  for (auto& work : works) {
    while (!work->finished()) std::this_thread::yield();
    ASSERT_TRUE(work->value());
  }
}

TEST_F(DigesterOnDevice, GibibyteTellsItsRate) {
  constexpr std::size_t kChunk = std::size_t{32} << 20, kChunks = 32, kAtOnce = 4;
  auto memory = cuda::DeviceBuffer::allocate(0, kChunk * kChunks, true);
  if (!memory) GTEST_SKIP() << memory.error().message;
  for (const std::size_t offset : {0, 2}) {
    for (int turn = 0; turn < 2; ++turn) {  // the first one makes what it needs
      const auto start = std::chrono::steady_clock::now();
      std::vector<std::unique_ptr<Digester::Work>> works;
      for (std::size_t at = 0; at < kChunks + kAtOnce; ++at) {
        if (at >= kAtOnce) {
          while (!works[at - kAtOnce]->finished()) continue;
          ASSERT_TRUE(works[at - kAtOnce]->value());
          works[at - kAtOnce].reset();
        }
        if (at >= kChunks) continue;
        const Ranges one{{memory->data() + at * kChunk + offset, kChunk - offset}};
        auto work = digester_->start(one);
        ASSERT_TRUE(work) << work.error().message;
        works.push_back(std::move(*work));
      }
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (turn == 1) {
        std::printf("%zu GiB in chunks of 32 MiB, %zu at once, from byte %zu on: %.0f GB/s\n",
                    (kChunk * kChunks) >> 30, kAtOnce, offset, kChunk * kChunks / took.count() / 1e9);
      }
    }
  }
}

}  // namespace
}  // namespace p2p::device
