// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/memory/peer_budget.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>

namespace p2p::engine {
namespace {

constexpr std::uint64_t kStep = PeerShare::kStep;

TEST(PeerBudget, IsSharedAndGivenBack) {
  const auto budget = std::make_shared<PeerBudget>(10 * kStep);
  PeerShare left(budget);
  {
    PeerShare right(budget);
    EXPECT_TRUE(left.set(7 * kStep));
    EXPECT_TRUE(right.set(5 * kStep));
    EXPECT_EQ(budget->taken(), 10 * kStep);  // each has a step for nothing
    const Status refused = right.set(5 * kStep + 1);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(right.bytes(), 5 * kStep) << "nothing has changed";
    EXPECT_TRUE(left.set(0));
    EXPECT_TRUE(right.set(5 * kStep + 1));
  }
  EXPECT_EQ(budget->taken(), 0U);
}

TEST(PeerBudget, WhoKeepsLittleGoesOnWhileOthersHaveUsedItUp) {
  const auto budget = std::make_shared<PeerBudget>(4 * kStep);
  PeerShare greedy(budget);
  EXPECT_TRUE(greedy.set(5 * kStep));
  PeerShare modest(budget);
  EXPECT_TRUE(modest.set(kStep));
  EXPECT_FALSE(modest.set(kStep + 1));
  EXPECT_FALSE(greedy.set(~std::uint64_t{0}));
}

TEST(PeerBudget, WhatIsTakenIsNearWhatIsKept) {
  const auto budget = std::make_shared<PeerBudget>(1000 * kStep);
  PeerShare share(budget);
  std::mt19937_64 random(5);
  for (int i = 0; i != 10000; ++i) {
    const std::uint64_t bytes = random() % (100 * kStep);
    ASSERT_TRUE(share.set(bytes));
    EXPECT_LE(bytes, budget->taken() + kStep);
    EXPECT_LE(budget->taken(), bytes + kStep);
  }
}

}  // namespace
}  // namespace p2p::engine
