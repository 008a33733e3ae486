// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/own_pages.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace p2p {
namespace {

struct Base {
  virtual ~Base() = default;
};
struct Large final : Base, OnOwnPages {
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(100'000, 7);
  std::uint8_t more[20'000]{};
};

TEST(OwnPages, ServeObjectsThatAreDeletedByTheirBase) {
  for (int round = 0; round < 1000; ++round) {
    const std::unique_ptr<Base> made(new Large);
    auto& large = static_cast<Large&>(*made);
    large.more[sizeof large.more - 1] = 9;
    ASSERT_EQ(large.bytes.back(), 7);
  }
}

TEST(OwnPages, ServeBuffersThatGrow) {
  std::vector<std::uint32_t, OwnPages<std::uint32_t>> buffer;
  for (std::uint32_t i = 0; i < 100'000; ++i) buffer.push_back(i);
  for (std::uint32_t i = 0; i < 100'000; ++i) ASSERT_EQ(buffer[i], i);
}

TEST(OwnPages, RefuseWhatNobodyHas) {
  OwnPages<std::uint64_t> pages;
  EXPECT_THROW(pages.allocate(~std::size_t{0} / 4), std::bad_alloc);
}

}  // namespace
}  // namespace p2p
