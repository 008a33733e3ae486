// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "support/sides.h"

namespace p2p::testing {

/// Writes, reads and lists of both, in parts of the memory, so that the fault always meets some of each.
class Traffic {
 public:
  static constexpr std::uint64_t kPart = Sides::kSize / 8;

  Traffic(Sides& sides, std::uint64_t seed) : sides_(sides), seed_(seed) {
    for (const std::uint64_t part : kWritten) fill(own(part), seed_ + part);
    for (const std::uint64_t part : kRead) {
      at_peer("fill", part);
      fill(own(part), seed_ + kNoSeed);
    }
  }

  void start_all() {
    auto& over = sides_.connection;
    for (const std::uint64_t part : kWritten) {
      const auto [from, to] = spans(part);
      transfers_.push_back(over.write(from, to));
    }
    for (const std::uint64_t part : kRead) {
      const auto [from, to] = spans(part);
      transfers_.push_back(over.read(from, to));
    }
    if (transfers_.size() <= kMost) return;
    EXPECT_TRUE(is_ok(transfers_[transfers_.size() - kMost].wait(kLimit)));
  }

  void expect_all_done() {
    for (const Transfer& transfer : transfers_) EXPECT_TRUE(is_ok(transfer.wait(kLimit)));
    for (const std::uint64_t part : kWritten) at_peer("check", part);
    for (const std::uint64_t part : kRead)
      EXPECT_EQ(difference(own(part), seed_ + part), std::nullopt) << part;
  }

 private:
  // The odd ones as lists of blocks.
  static constexpr std::array<std::uint64_t, 4> kWritten{0, 1, 2, 3};
  static constexpr std::array<std::uint64_t, 4> kRead{4, 5, 6, 7};
  static constexpr std::uint64_t kNoSeed = 100;
  static constexpr std::size_t kMost = 64;

  std::span<std::byte> own(std::uint64_t part) { return sides_.own.part(part * kPart, kPart); }

  void at_peer(const char* what, std::uint64_t part) {
    EXPECT_TRUE(is_ok(status_of(sides_.peer.call(
        fmt::format("{} {} {} {} {}", what, sides_.theirs.index, part * kPart, kPart, seed_ + part)))));
  }

  std::pair<std::vector<LocalSpan>, std::vector<RemoteSpan>> spans(std::uint64_t part) const {
    std::pair<std::vector<LocalSpan>, std::vector<RemoteSpan>> both;
    const std::uint64_t end = (part + 1) * kPart;
    const std::uint64_t step = part % 2 == 0 ? kPart : 4099;
    for (std::uint64_t at = part * kPart; at < end; at += step) {
      const std::uint64_t size = std::min(step, end - at);
      both.first.push_back(sides_.own.span(at, size));
      both.second.push_back({sides_.target.region, sides_.target.address + at, size});
    }
    std::ranges::reverse(both.first);  // nothing merges
    std::ranges::reverse(both.second);
    return both;
  }

  Sides& sides_;
  const std::uint64_t seed_;
  std::vector<Transfer> transfers_;
};

}  // namespace p2p::testing
