// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/policy.h"

#include <gtest/gtest.h>

namespace p2p::engine {
namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::size_t kChannels = 8;

Policy policy_of(std::uint64_t thread_bytes) {
  return Policy::of({.thread_bytes = thread_bytes, .max_batch_bytes = kKiB * kKiB}, Options());
}

TEST(Policy, SharesTheRestAmongHalfOfTheChannels) {
  const Policy policy = policy_of(0);
  EXPECT_EQ(policy.share(64 * kKiB, kChannels), 128 * kKiB);
  EXPECT_EQ(policy.share(1024 * kKiB, kChannels), 256 * kKiB);
  EXPECT_EQ(policy.share(64 * 1024 * kKiB, kChannels), 1024 * kKiB);
}

TEST(Policy, WakesAThreadForEachShare) {
  const Policy policy = policy_of(0);
  EXPECT_EQ(policy.channels_worth(64 * kKiB, kChannels), 1u);
  EXPECT_EQ(policy.channels_worth(256 * kKiB, kChannels), 3u);
  EXPECT_EQ(policy.channels_worth(1024 * kKiB, kChannels), 5u);
}

// The items are as short as else; fewer threads take them.
TEST(Policy, WakesNoThreadForLessThanTheTransportSays) {
  const Policy policy = policy_of(512 * kKiB);
  EXPECT_EQ(policy.channels_worth(256 * kKiB, kChannels), 1u);
  EXPECT_EQ(policy.channels_worth(1024 * kKiB, kChannels), 3u);
  EXPECT_EQ(policy.channels_worth(64 * 1024 * kKiB, kChannels), 65u);
  EXPECT_EQ(policy.share(1024 * kKiB, kChannels), 256 * kKiB);
}

}  // namespace
}  // namespace p2p::engine
