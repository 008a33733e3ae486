// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "drivers/cuda/device.h"
#include "drivers/cuda/error.h"
#include "drivers/cuda/memory.h"
#include "drivers/cuda/stream.h"
#include "kernels/standby.h"
#include "support/memory.h"

namespace p2p::kernels {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t size, std::uint32_t seed) {
  Bytes bytes(size);
  testing::fill(bytes, seed);
  return bytes;
}

/// A run inside a buffer.
struct Place {
  std::uint64_t source = 0;
  std::uint64_t target = 0;
  std::uint64_t bytes = 0;
};

/// Runs of `size` bytes with gaps, sources in shuffled order, off alignment by the given bytes.
std::vector<Place> places(std::size_t count, std::uint64_t size, unsigned source_off, unsigned target_off) {
  const std::uint64_t pitch = (size + 16 + 15) / 16 * 16 + 16;
  std::vector<std::uint64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  std::vector<Place> all;
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back({order[i] * pitch + source_off, i * pitch + target_off, size});
  }
  return all;
}

std::uint64_t extent(const std::vector<Place>& all) {
  std::uint64_t end = 16;
  for (const Place& place : all)
    end = std::max({end, place.source + place.bytes, place.target + place.bytes});
  return end;
}

std::vector<CopyBlock> blocks_at(const std::vector<Place>& all, const std::byte* source, std::byte* target) {
  std::vector<CopyBlock> blocks;
  for (const Place& place : all) {
    blocks.push_back({source + place.source, target + place.target, place.bytes});
  }
  return blocks;
}

CopyList list_of(const std::vector<CopyBlock>& blocks, const CopyBlock* at) {
  CopyList list{.blocks = at, .count = blocks.size()};
  for (const CopyBlock& block : blocks) {
    list.total += block.bytes;
    list.largest = std::max(list.largest, block.bytes);
  }
  return list;
}

std::vector<CopyBlock> blocks_of(const CopyRows& all) {
  std::vector<CopyBlock> blocks;
  for (std::uint64_t row = 0; row != all.rows; ++row) {
    for (std::uint64_t i = 0; i != all.count; ++i) {
      blocks.push_back({all.first.source + row * all.source_row + i * all.source_stride,
                        all.first.target + row * all.target_row + i * all.target_stride, all.first.bytes});
    }
  }
  return blocks;
}

TEST(CopyShape, SpreadsOneBlockAndLeavesLongListsAlone) {
  const CopyShape one =
      shape_of({.blocks = nullptr, .count = 1, .total = 1 << 20, .largest = 1 << 20}, {}, 132);
  EXPECT_EQ(one.split, 256u);
  EXPECT_EQ(one.ctas, 64u);
  const CopyShape many =
      shape_of({.blocks = nullptr, .count = 40960, .total = 40960ull * 4096, .largest = 4096}, {}, 132);
  EXPECT_EQ(many.split, 1u);
  EXPECT_EQ(many.ctas, 132u);
  EXPECT_EQ(shape_of({.blocks = nullptr, .count = 9, .total = 9, .largest = 1}, {}, 132).ctas, 3u);
  EXPECT_EQ(shape_of({.blocks = nullptr, .count = 0, .total = 0, .largest = 0}, {}, 132).ctas, 1u);
  const CopyShape small =
      shape_of({.blocks = nullptr, .count = 40960, .total = 1 << 28, .largest = 8192}, {.ctas = 8}, 132);
  EXPECT_EQ(small.ctas, 8u);
}

TEST(CopyShape, OneLargeBlockAmongSmallOnesKeepsWarpsBusy) {
  const CopyShape mixed =
      shape_of({.blocks = nullptr, .count = 10001, .total = (10000ull << 12) + (1 << 20), .largest = 1 << 20},
               {}, 132);
  EXPECT_GT(mixed.split, 1u);
  EXPECT_LE(mixed.split, 8u);
}

TEST(CopyLaunch, SaysWhyItCannotRun) {
  if (cuda::available()) GTEST_SKIP() << "there is a CUDA device";
  CopyBlock block;
  const int code = launch_copy({.blocks = &block, .count = 1, .total = 0, .largest = 0}, {}, {}, nullptr);
  ASSERT_NE(code, 0);
  EXPECT_EQ(cuda::error_of(code, "copy").code, ErrorCode::kUnavailable);
}

class CopyKernel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status status = cuda::available(); !status) GTEST_SKIP() << status.error().message;
    stream_ = cuda::Stream::open(0, cuda::Stream::Priority::kHigh).value();
    words_ = cuda::HostBuffer::allocate(64).value();
    arrivals_ = cuda::DeviceBuffer::allocate(0, 64, true).value();
    listed_ = cuda::HostBuffer::allocate(4096).value();
    std::memset(words_.data(), 0, words_.size());
  }

  /// Starts blocks and waits for the word.
  void run(const std::vector<CopyBlock>& blocks, const Grid& grid = {}) {
    const std::size_t bytes = blocks.size() * sizeof(CopyBlock);
    if (listed_.size() < bytes) listed_ = cuda::HostBuffer::allocate(bytes).value();
    if (!blocks.empty()) std::memcpy(listed_.data(), blocks.data(), bytes);
    launch(list_of(blocks, reinterpret_cast<const CopyBlock*>(listed_.data())), grid);
  }

  template <class Work>
  void launch(const Work& work, const Grid& grid) {
    auto* const word = reinterpret_cast<std::uint32_t*>(words_.data());
    const Signal signal{word, ++turn_, reinterpret_cast<std::uint32_t*>(arrivals_.data())};
    const cuda::DeviceGuard guard(0);
    ASSERT_TRUE(cuda::check(launch_copy(work, grid, signal, stream_.handle()), "launch"));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::atomic_ref<std::uint32_t>(*word).load(std::memory_order_acquire) != turn_) {
      if (std::chrono::steady_clock::now() < deadline) continue;
      const auto idle = stream_.idle();
      FAIL() << (idle ? "no signal" : idle.error().message);
    }
    ASSERT_TRUE(stream_.synchronize());
  }

  /// Copies `all` from `source` to `target` and compares the whole target with the reference.
  void expect_same(const std::vector<Place>& all, std::byte* source, std::byte* target,
                   const Grid& grid = {}) {
    const std::size_t size = extent(all);
    const Bytes from = random_bytes(size, 11);
    Bytes expected = random_bytes(size, 12);
    ASSERT_TRUE(cuda::copy_now(source, from.data(), size));
    ASSERT_TRUE(cuda::copy_now(target, expected.data(), size));
    ASSERT_NO_FATAL_FAILURE(run(blocks_at(all, source, target), grid));
    copy_on_host(blocks_at(all, from.data(), expected.data()));
    Bytes got(size);
    ASSERT_TRUE(cuda::copy_now(got.data(), target, size));
    EXPECT_TRUE(got == expected);
  }

  cuda::Stream stream_;
  cuda::HostBuffer words_;
  cuda::DeviceBuffer arrivals_;
  cuda::HostBuffer listed_;  // the blocks of the latest run
  std::uint32_t turn_ = 0;
};

/// By size, so that slow tools can take some of them.
class CopyKernelOf : public CopyKernel, public ::testing::WithParamInterface<std::uint64_t> {};

TEST_P(CopyKernelOf, AnySizeAndAlignment) {
  auto source = cuda::DeviceBuffer::allocate(0, 1 << 20).value();
  auto target = cuda::DeviceBuffer::allocate(0, 1 << 20).value();
  for (const unsigned source_off : {0u, 1u, 2u, 4u, 8u, 13u}) {
    for (const unsigned target_off : {0u, 1u, 4u, 8u, 15u}) {
      SCOPED_TRACE(::testing::Message() << "off by " << source_off << " and " << target_off);
      expect_same(places(3, GetParam(), source_off, target_off), source.data(), target.data());
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bytes, CopyKernelOf,
                         ::testing::Values(1, 2, 3, 15, 16, 17, 31, 255, 4095, 4096, 4097, 5003, 70001),
                         [](const auto& parameter) { return std::to_string(parameter.param); });

TEST_F(CopyKernel, AnyNumberOfBlocks) {
  auto source = cuda::DeviceBuffer::allocate(0, std::size_t{1} << 26).value();
  auto target = cuda::DeviceBuffer::allocate(0, std::size_t{1} << 26).value();
  for (const std::size_t count : {0, 1, 63, 64, 65, 1000, 10000, 100000}) {
    SCOPED_TRACE(count);
    expect_same(places(count, 500, 0, 0), source.data(), target.data());
    expect_same(places(count, 77, 3, 5), source.data(), target.data(), {.ctas = 4});
  }
}

TEST_F(CopyKernel, MixedSizesInOneList) {
  std::vector<Place> all;
  std::uint64_t at = 0;
  std::mt19937 random(9);
  for (int i = 0; i < 3000; ++i) {
    const std::uint64_t size = i % 100 == 0 ? 100000 + random() % 100000 : random() % 3000;
    all.push_back({at + random() % 8, at + random() % 8, size});
    at += size + 16;
  }
  auto source = cuda::DeviceBuffer::allocate(0, at + 16).value();
  auto target = cuda::DeviceBuffer::allocate(0, at + 16).value();
  expect_same(all, source.data(), target.data());
}

// Of short blocks word by word, in each width, and of others.
TEST_F(CopyKernel, RowsOfAnyShape) {
  constexpr std::size_t kMemory = std::size_t{8} << 20;
  auto source = cuda::DeviceBuffer::allocate(0, kMemory).value();
  auto target = cuda::DeviceBuffer::allocate(0, kMemory).value();
  const Bytes from = random_bytes(kMemory, 11);
  ASSERT_TRUE(cuda::copy_now(source.data(), from.data(), kMemory));
  std::mt19937 random(13);
  for (const std::uint64_t bytes : {4, 7, 48, 132, 576, 2048, 2064, 9216}) {
    for (const std::uint64_t step : {1, 4, 8, 16}) {
      SCOPED_TRACE(::testing::Message() << bytes << " bytes, gaps of " << step);
      CopyRows all{.count = 1 + random() % 20, .rows = 1 + random() % 20};
      all.source_stride = bytes + step * (random() % 3);
      all.target_stride = bytes + step * (random() % 3);
      all.source_row = all.count * all.source_stride + step;
      all.target_row = all.count * all.target_stride + step;
      const auto rows_at = [&](const std::byte* here, std::byte* there) {
        all.first = {here + step, there + step, bytes};
        return all;
      };
      Bytes expected = random_bytes(kMemory, 12);
      ASSERT_TRUE(cuda::copy_now(target.data(), expected.data(), kMemory));
      ASSERT_NO_FATAL_FAILURE(launch(rows_at(source.data(), target.data()), {}));
      copy_on_host(blocks_of(rows_at(from.data(), expected.data())));
      Bytes got(kMemory);
      ASSERT_TRUE(cuda::copy_now(got.data(), target.data(), kMemory));
      ASSERT_TRUE(got == expected);
    }
  }
}

TEST_F(CopyKernel, ToAndFromPinnedMemory) {
  auto device = cuda::DeviceBuffer::allocate(0, 1 << 24).value();
  auto host = cuda::HostBuffer::allocate(1 << 24).value();
  for (const std::uint64_t size : {4096, 16384, 1001}) {
    const std::vector<Place> all = places(500, size, 0, 0);
    expect_same(all, device.data(), host.data(), {.ctas = 8});
    expect_same(all, host.data(), device.data(), {.ctas = 8});
  }
}

TEST_F(CopyKernel, BetweenDevices) {
  if (cuda::device_count() < 2 || !cuda::reaches(0, 1))
    GTEST_SKIP() << "needs two devices that reach each other";
  ASSERT_TRUE(cuda::enable_peer(0, 1));
  auto here = cuda::DeviceBuffer::allocate(0, 1 << 24).value();
  auto there = cuda::DeviceBuffer::allocate(1, 1 << 24).value();
  const std::vector<Place> all = places(2000, 4096, 0, 0);
  expect_same(all, here.data(), there.data());
  expect_same(all, there.data(), here.data());
}

// All orders lie there when the kernel starts, so that it also runs to its end where a launch waits for that,
// as under the tools that look for races.
TEST_F(CopyKernel, StandbyWorksOffWhatWasOrderedBefore) {
  constexpr std::size_t kBytes = 1 << 20;
  constexpr std::uint32_t kFirst = 5;
  auto source = cuda::DeviceBuffer::allocate(0, kBytes).value();
  auto target = cuda::DeviceBuffer::allocate(0, kBytes, true).value();
  const Bytes content = random_bytes(kBytes, 21);
  ASSERT_TRUE(cuda::copy_now(source.data(), content.data(), kBytes));
  auto orders = cuda::HostBuffer::allocate(kOrders * sizeof(Order)).value();
  auto scratch =
      cuda::DeviceBuffer::allocate(0, kOrders * (sizeof(Order) + sizeof(std::uint32_t)), true).value();
  std::memset(orders.data(), 0, orders.size());
  Bytes expected(kBytes);
  std::uint32_t number = kFirst;
  const auto order = [&](const Place& place) {
    ++number;
    const CopyBlock block = {source.data() + place.source, target.data() + place.target, place.bytes};
    auto& slot = reinterpret_cast<Order*>(orders.data())[number % kOrders];
    slot = {.source = tagged(reinterpret_cast<std::uint64_t>(block.source), number),
            .target = tagged(reinterpret_cast<std::uint64_t>(block.target), number),
            .bytes = tagged(block.bytes, number),
            .unused = tagged(0, number)};
    std::copy_n(content.data() + place.source, place.bytes, expected.data() + place.target);
  };
  for (const Place& place : {Place{0, 64, 1}, Place{1000, 4096, 65536}, Place{70001, 300003, 200005}})
    order(place);
  order({0, 0, 0});
  auto* const word = reinterpret_cast<std::uint32_t*>(words_.data());
  const StandbyBoard board{
      .orders = reinterpret_cast<const Order*>(orders.data()),
      .relay = reinterpret_cast<Order*>(scratch.data()),
      .done = word,
      .arrivals = reinterpret_cast<std::uint32_t*>(scratch.data() + kOrders * sizeof(Order)),
      .first = kFirst,
      .life_ns = 20'000'000'000};
  const cuda::DeviceGuard guard(0);
  ASSERT_TRUE(cuda::check(launch_standby(board, 8, stream_.handle()), "launch"));
  ASSERT_TRUE(stream_.synchronize());
  EXPECT_EQ(*word, number - 1);
  Bytes got(kBytes);
  ASSERT_TRUE(cuda::copy_now(got.data(), target.data(), kBytes));
  EXPECT_TRUE(got == expected);
}

TEST_F(CopyKernel, OneGigabyte) {
  const std::size_t size = (std::size_t{1} << 30) + 5;
  auto source = cuda::DeviceBuffer::allocate(0, size).value();
  auto target = cuda::DeviceBuffer::allocate(0, size, true).value();
  // Content that cannot be mistaken for a neighbour's, made in pieces to spare the host's memory.
  const Bytes piece = random_bytes((1 << 24) + 1, 5);
  for (std::size_t at = 0; at < size; at += piece.size()) {
    ASSERT_TRUE(cuda::copy_now(source.data() + at, piece.data(), std::min(piece.size(), size - at)));
  }
  ASSERT_NO_FATAL_FAILURE(run({{source.data(), target.data(), size}}));
  Bytes got(piece.size());
  for (std::size_t at = 0; at < size; at += piece.size()) {
    const std::size_t part = std::min(piece.size(), size - at);
    ASSERT_TRUE(cuda::copy_now(got.data(), target.data() + at, part));
    ASSERT_EQ(std::memcmp(got.data(), piece.data(), part), 0) << "at " << at;
  }
}

}  // namespace
}  // namespace p2p::kernels
