// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/memory/region_keys.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <thread>
#include <vector>

namespace p2p::engine {
namespace {

TEST(RegionKeys, NoTwoAreAlikeWhoeverDraws) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kEach = 3 * RegionKeys::kBlock + 1;  // several blocks, begun and ended by anybody
  RegionKeys keys;
  std::vector<std::vector<RegionKey>> drawn(kThreads);
  std::vector<std::thread> threads;
  for (auto& mine : drawn) {
    threads.emplace_back([&keys, &mine] {
      for (std::size_t i = 0; i != kEach; ++i) mine.push_back(keys.draw().value_or(RegionKey{}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<RegionKey> all{RegionKey{}};  // nor is one what is left of one that was given
  for (const auto& mine : drawn) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), 1 + kThreads * kEach);
}

TEST(RegionKeys, TwoEndpointsHaveNoneInCommon) {
  RegionKeys one;
  RegionKeys other;
  std::set<RegionKey> all{RegionKey{}};
  for (std::size_t i = 0; i != RegionKeys::kBlock + 1; ++i) {
    all.insert(one.draw().value_or(RegionKey{}));
    all.insert(other.draw().value_or(RegionKey{}));
  }
  EXPECT_EQ(all.size(), 1 + 2 * (RegionKeys::kBlock + 1));
}

}  // namespace
}  // namespace p2p::engine
