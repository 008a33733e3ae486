// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

namespace p2p::kernels {
namespace {

struct alignas(16) Wide {
  std::array<std::uint64_t, 2> half;
};

CopyRows shape(std::mt19937& random, std::uint64_t bytes, std::uint64_t step) {
  CopyRows all{.count = 1 + random() % 9, .rows = 1 + random() % 9};
  all.source_stride = bytes + step * (random() % 3);
  all.target_stride = bytes + step * (random() % 3);
  all.source_row = all.count * all.source_stride + step;
  all.target_row = all.count * all.target_stride + step;
  all.first.bytes = bytes;
  return all;
}

void copy_by_all(const CopyRows& all, std::uint32_t threads) {
  for (std::uint32_t thread = 0; thread != threads; ++thread) {
    switch (rows::word_of(all)) {
      case 16: rows::copy<Wide>(all, thread, threads); break;
      case 8: rows::copy<std::uint64_t>(all, thread, threads); break;
      case 4: rows::copy<std::uint32_t>(all, thread, threads); break;
      default: FAIL();
    }
  }
}

TEST(Rows, AllWordsAreCopiedOnceByWhateverThreads) {
  std::mt19937 random(5);
  std::array<int, 17> widths{};
  for (int round = 0; round != 600; ++round) {
    const std::uint64_t step = 4U << random() % 3;
    CopyRows all = shape(random, step * (1 + random() % 40), step);
    alignas(16) static std::array<std::byte, 1 << 17> from, to, expected;
    ASSERT_LE(all.rows * std::max(all.source_row, all.target_row) + 16, from.size());
    for (std::byte& byte : from) byte = static_cast<std::byte>(random());
    to.fill(std::byte{7});
    expected = to;
    all.first.source = from.data() + step % 16;
    all.first.target = to.data() + step % 16;
    ++widths.at(rows::word_of(all));
    ASSERT_NO_FATAL_FAILURE(copy_by_all(all, 1 + random() % 300));
    for (std::uint64_t row = 0; row != all.rows; ++row) {
      for (std::uint64_t i = 0; i != all.count; ++i) {
        std::memcpy(expected.data() + step % 16 + row * all.target_row + i * all.target_stride,
                    all.first.source + row * all.source_row + i * all.source_stride, all.first.bytes);
      }
    }
    ASSERT_TRUE(to == expected) << "round " << round;
  }
  for (const int width : {4, 8, 16}) EXPECT_GT(widths.at(static_cast<std::size_t>(width)), 50);
}

TEST(Rows, WhatIsLongOrMuchOrNotAlignedGoesOtherwise) {
  alignas(16) std::array<std::byte, 64> memory{};
  const auto word_of = [&](std::uint64_t bytes, std::uint64_t stride, std::uint64_t count, std::size_t off) {
    return rows::word_of({.first = {memory.data() + off, memory.data(), bytes},
                          .count = count,
                          .source_stride = stride,
                          .target_stride = stride});
  };
  EXPECT_EQ(word_of(64, 64, 10, 0), 16U);
  EXPECT_EQ(word_of(64, 64, 10, 8), 8U);
  EXPECT_EQ(word_of(132, 264, 10, 0), 4U);
  EXPECT_EQ(word_of(64, 66, 10, 0), 0U);
  EXPECT_EQ(word_of(64, 64, 10, 1), 0U);
  EXPECT_EQ(word_of(rows::kShort, 4096, 10, 0), 16U);
  EXPECT_EQ(word_of(rows::kShort + 16, 4096, 10, 0), 0U);
  EXPECT_EQ(word_of(64, 64, std::uint64_t{1} << 26, 0), 0U);
}

}  // namespace
}  // namespace p2p::kernels
