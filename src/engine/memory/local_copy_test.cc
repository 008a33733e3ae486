// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/memory/local_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <random>
#include <vector>

#include "drivers/cuda/memory.h"
#include "p2p/endpoint.h"
#include "support/memory.h"

namespace p2p {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

// Three slots and a part of one.
constexpr std::size_t kSize = (std::size_t{3} << 20) + 70'001;

class LocalCopy : public ::testing::Test {
 protected:
  void SetUp() override {
    Options options;
    options.listen_address = "127.0.0.1";
    auto endpoint = Endpoint::create(options);
    ASSERT_TRUE(endpoint) << endpoint.error().message;
    endpoint_.emplace(std::move(*endpoint));
  }

  MemoryRegion registered(std::byte* data, std::size_t size = kSize) {
    auto region = endpoint_->register_memory(data, size);
    EXPECT_TRUE(region) << region.error().message;
    return std::move(*region);
  }

  std::optional<Endpoint> endpoint_;
};

Bytes random_bytes(std::mt19937_64& dice, std::size_t size) {
  Bytes bytes(size);
  testing::fill(bytes, dice());
  return bytes;
}

/// All bytes of the regions once, in pieces, and those of both in any order; some pieces are empty.
std::vector<LocalSpan> pieces_of(std::mt19937_64& dice, const std::vector<const MemoryRegion*>& regions,
                                 std::size_t most) {
  std::vector<LocalSpan> pieces;
  for (const MemoryRegion* region : regions) {
    for (std::size_t at = 0; at != region->size();) {
      const std::size_t size = std::min(dice() % (most + 1), region->size() - at);
      pieces.push_back(region->span(at, size));
      at += size;
    }
  }
  std::ranges::shuffle(pieces, dice);
  return pieces;
}

/// What a reader of that memory sees, GPU or not.
Bytes in_a_row(const std::vector<LocalSpan>& pieces) {
  Bytes row;
  for (const LocalSpan& piece : pieces) {
    const std::size_t at = row.size();
    row.resize(at + piece.size);
    EXPECT_TRUE(cuda::copy_now(row.data() + at, piece.data, piece.size));
  }
  return row;
}

TEST_F(LocalCopy, OfHostMemoryGoesBothWays) {
  std::mt19937_64 dice(1);
  Bytes memory = random_bytes(dice, kSize);
  const Bytes before = memory;
  const MemoryRegion region = registered(memory.data());
  const std::vector<LocalSpan> pieces{region.span(5001, kSize - 5001), region.span(7, 0),
                                      region.span(0, 5001)};
  Bytes row(kSize);
  ASSERT_TRUE(endpoint_->gather(pieces, row));
  std::ranges::rotate(row, row.end() - 5001);
  EXPECT_EQ(row, before);
  const Bytes fresh = random_bytes(dice, kSize);
  ASSERT_TRUE(endpoint_->scatter(fresh, pieces));
  std::ranges::rotate(memory, memory.begin() + 5001);
  EXPECT_EQ(memory, fresh);
  EXPECT_TRUE(endpoint_->gather({}, {}));
}

TEST_F(LocalCopy, OfGpuAndHostMemoryGoesBothWaysInPiecesOfAnySize) {
  auto gpu = cuda::DeviceBuffer::allocate(0, kSize);
  if (!gpu) GTEST_SKIP() << gpu.error().message;
  std::mt19937_64 dice(2);
  Bytes host(kSize);
  const MemoryRegion near = registered(gpu->data()), here = registered(host.data());
  for (const std::size_t most : {std::size_t{3} << 20, std::size_t{70'000}, std::size_t{600}}) {
    for (const auto& regions : {std::vector{&near}, std::vector<const MemoryRegion*>{&near, &here}}) {
      const auto pieces = pieces_of(dice, regions, most);
      const Bytes fresh = random_bytes(dice, kSize * regions.size());
      ASSERT_TRUE(endpoint_->scatter(fresh, pieces));
      EXPECT_EQ(in_a_row(pieces), fresh) << most;
      Bytes row(fresh.size());
      ASSERT_TRUE(endpoint_->gather(pieces, row));
      EXPECT_EQ(row, fresh) << most;
    }
  }
}

TEST_F(LocalCopy, RefusesWhatIsNotRegisteredOrOfAnotherSize) {
  Bytes memory(kSize), row(kSize);
  MemoryRegion region = registered(memory.data());
  const LocalSpan inside = region.span();
  LocalSpan beyond = inside;
  ++beyond.data;
  EXPECT_EQ(endpoint_->gather({{beyond}}, row).error().code, ErrorCode::kOutOfRange);
  EXPECT_EQ(endpoint_->scatter(row, {{beyond}}).error().code, ErrorCode::kOutOfRange);
  const Status other = endpoint_->gather({{inside, inside}}, row);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(other.error().message, HasSubstr("the spans have"));
  region = {};
  EXPECT_EQ(endpoint_->gather({{inside}}, row).error().code, ErrorCode::kNotFound);
}

TEST_F(LocalCopy, SaysThatMemoryIsBad) {
  testing::Pages pages(kSize);
  Bytes row(pages.bytes().size());
  const MemoryRegion region = registered(pages.data(), row.size());
  testing::spoil(pages.part(std::size_t{1} << 20, 4096), testing::Bad::kProtected);
  const Status gathered = endpoint_->gather({{region.span()}}, row);
  ASSERT_FALSE(gathered);
  EXPECT_EQ(gathered.error().code, ErrorCode::kSystem);
  EXPECT_FALSE(endpoint_->scatter(row, {{region.span()}}));
}

TEST_F(LocalCopy, DoesNotEndAProgramThatHasHandlersOfItsOwnNow) {
  testing::Pages pages(kSize);
  Bytes row(pages.bytes().size());
  const MemoryRegion region = registered(pages.data(), row.size());
  testing::spoil(pages.part(0, 4096), testing::Bad::kProtected);
  struct sigaction before{};
  const struct sigaction own{};  // the system's
  ASSERT_EQ(::sigaction(SIGSEGV, &own, &before), 0);
  const Status gathered = endpoint_->gather({{region.span()}}, row);
  ASSERT_EQ(::sigaction(SIGSEGV, &before, nullptr), 0);
  ASSERT_FALSE(gathered);
  EXPECT_EQ(gathered.error().code, ErrorCode::kSystem);
}

TEST_F(LocalCopy, OfFreedGpuMemoryIsRefused) {
  auto gpu = cuda::DeviceBuffer::allocate(0, kSize);
  if (!gpu) GTEST_SKIP() << gpu.error().message;
  const MemoryRegion region = registered(gpu->data());
  *gpu = {};
  Bytes row(kSize);
  EXPECT_EQ(endpoint_->gather({{region.span()}}, row).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace p2p
