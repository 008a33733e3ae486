// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/memory/pins.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"

namespace p2p::cuda_ipc {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kBase = std::uint64_t{1} << 40;

/// An address that nobody touches.
std::byte* at(std::uint64_t offset) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<std::byte*>(kBase + offset);
}

class PinsTest : public ::testing::Test {
 protected:
  using Range = std::pair<std::byte*, std::size_t>;

  PinnedRange pin(std::uint64_t offset, std::size_t size) {
    auto pinned = pins_.pin(at(offset), size);
    EXPECT_TRUE(pinned);
    return pinned ? std::move(*pinned) : PinnedRange{};
  }

  std::vector<Range> asked_;
  bool foreign_ = false;
  bool refuses_ = false;
  Pins pins_{[this](std::byte* data, std::size_t bytes) -> Result<cuda::HostPin> {
               if (refuses_) return fail(ErrorCode::kSystem, "no");
               asked_.emplace_back(data, bytes);
               return cuda::HostPin();
             },
             [this](const void*, std::size_t) { return foreign_; }};
};

TEST_F(PinsTest, PinsNothingBeside) {
  const PinnedRange range = pin(100, 5000);
  EXPECT_EQ(asked_, (std::vector<Range>{{at(100), 5000}}));
  EXPECT_EQ(range.pins.size(), 1u);
  EXPECT_TRUE(range.seams.empty());
}

TEST_F(PinsTest, WhatLiesWithinSharesThePin) {
  std::optional<PinnedRange> outer = pin(0, 10 * kPage);
  const PinnedRange inner = pin(kPage + 5, kPage);
  const PinnedRange same_page = pin(10 * kPage - 7, 7);
  EXPECT_EQ(asked_.size(), 1u);
  EXPECT_EQ(inner.pins, outer->pins);
  EXPECT_TRUE(same_page.seams.empty());
  // Which lives on with it.
  outer.reset();
  EXPECT_EQ(pin(5 * kPage, kPage).pins, inner.pins);
  EXPECT_EQ(asked_.size(), 1u);
}

TEST_F(PinsTest, OfOverlappingOnesTheRestIsPinned) {
  const PinnedRange middle = pin(4 * kPage, 2 * kPage);
  const PinnedRange behind = pin(5 * kPage + 1, 3 * kPage);
  const PinnedRange all = pin(2 * kPage + 9, 10 * kPage);
  EXPECT_EQ(asked_, (std::vector<Range>{{at(4 * kPage), 2 * kPage},
                                        {at(6 * kPage), 2 * kPage + 1},
                                        {at(2 * kPage + 9), 2 * kPage - 9},
                                        {at(8 * kPage + 1), 4 * kPage + 8}}));
  EXPECT_EQ(behind.seams, (std::vector<std::byte*>{at(6 * kPage)}));
  EXPECT_EQ(all.pins.size(), 4u);
  EXPECT_EQ(all.seams, (std::vector<std::byte*>{at(4 * kPage), at(6 * kPage), at(8 * kPage + 1)}));
}

TEST_F(PinsTest, IsPinnedAnewOnceNobodyHasIt) {
  pin(0, kPage);
  pin(0, 2 * kPage);
  EXPECT_EQ(asked_, (std::vector<Range>{{at(0), kPage}, {at(0), 2 * kPage}}));
}

TEST_F(PinsTest, WhatSomebodyElsePinnedIsLeftToThem) {
  foreign_ = true;
  const PinnedRange range = pin(3, 5 * kPage);
  EXPECT_TRUE(range.pins.empty());
  EXPECT_TRUE(asked_.empty());
}

TEST_F(PinsTest, ARefusalLeavesTheOthersPinned) {
  const PinnedRange first = pin(0, kPage);
  refuses_ = true;
  const auto refused = pins_.pin(at(0), 3 * kPage);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "no");
  refuses_ = false;
  EXPECT_EQ(pin(0, kPage).pins, first.pins);
  EXPECT_EQ(pin(0, 3 * kPage).pins.size(), 2u);
}

}  // namespace
}  // namespace p2p::cuda_ipc
