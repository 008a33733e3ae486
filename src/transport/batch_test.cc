// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/batch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace p2p {
namespace {

std::byte* at(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

/// The addresses of a batch's bytes at the peer, in order.
using Places = std::vector<std::uint64_t>;

void note(Places& places, const Segment& piece) {
  for (std::uint64_t i = 0; i != piece.size; ++i) places.push_back(piece.remote + i);
}

TEST(Batch, WhatIsTakenAtOnceIsNotVisited) {
  std::mt19937_64 random(47);
  std::size_t taken_at_once = 0;
  for (int round = 0; round != 2000; ++round) {
    std::vector<Segment> segments;
    std::uint64_t bytes = 0, address = 1 << 20;
    for (std::size_t n = 1 + random() % 12; n != 0; --n) {
      segments.push_back({at(address), address * 2, 1 + random() % 20, nullptr, nullptr});
      bytes += segments.back().size;
      address += 32;
    }
    // Of the first and of the last segment a part may be used.
    const std::uint64_t skip = random() % segments.front().size;
    const std::uint64_t spared = segments.size() == 1 ? 0 : random() % segments.back().size;
    const Batch batch{BatchId{1}, Operation::kWrite, segments, skip, bytes - skip - spared};

    Places pieces, runs;
    batch.for_each_piece([&](const Segment& piece) { note(pieces, piece); });
    batch.for_each_run([&](const Segment& run) { note(runs, run); },
                       [&](std::span<const Segment> whole) {
                         Batch::Taken taken;
                         for (const Segment& one : whole.first(random() % (whole.size() + 1))) {
                           note(runs, one);
                           taken = {taken.segments + 1, taken.bytes + one.size};
                         }
                         taken_at_once += taken.segments;
                         return taken;
                       });
    ASSERT_EQ(pieces.size(), batch.bytes);
    ASSERT_EQ(runs, pieces);
  }
  EXPECT_GT(taken_at_once, 4000U);
}

}  // namespace
}  // namespace p2p
