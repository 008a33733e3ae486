// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "base/error.h"

namespace p2p::nccl_net {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

/// Devices 0 to 3 reach each other, nothing reaches 4.
struct GpusTest : ::testing::Test {
  std::set<std::pair<int, int>> enabled;
  Gpus gpus{[this](int device, int peer) -> Status {
    if (device == 4 || peer == 4)
      return fail(ErrorCode::kUnavailable, "device {} cannot reach {}", device, peer);
    enabled.insert({device, peer});
    return {};
  }};
};

TEST_F(GpusTest, WithoutMemoryTheDeviceInUseHasTheChannels) {
  EXPECT_THAT(gpus.for_channels(2), ElementsAre(2));
  EXPECT_THAT(gpus.for_channels(3), ElementsAre(2)) << "what has channels keeps them";
}

TEST_F(GpusTest, EveryDeviceWithMemoryHasChannelsAndReachesTheOthers) {
  for (const int device : {3, 0, 1, 0}) ASSERT_TRUE(gpus.add_memory(device, false));
  EXPECT_THAT(gpus.for_channels(2), ElementsAre(0, 1, 3));
  EXPECT_EQ(enabled.size(), 6U);
}

TEST_F(GpusTest, OneDeviceNeedsNothing) {
  ASSERT_TRUE(gpus.add_memory(4, false));
  ASSERT_TRUE(gpus.add_memory(4, true));
  EXPECT_THAT(enabled, IsEmpty());
  EXPECT_THAT(gpus.for_channels(0), ElementsAre(4));
}

TEST_F(GpusTest, ADeviceThatTheOthersDoNotReachIsRefusedWithTheReason) {
  ASSERT_TRUE(gpus.add_memory(0, false));
  const Status refused = gpus.add_memory(4, false);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("cannot reach"));
  EXPECT_THAT(gpus.for_channels(0), ElementsAre(0));
}

TEST_F(GpusTest, MemoryThatComesLaterIsServedByTheChannelsThatAreThere) {
  EXPECT_THAT(gpus.for_channels(0), ElementsAre(0));
  ASSERT_TRUE(gpus.add_memory(1, false));
  EXPECT_TRUE(enabled.contains({0, 1}));
  EXPECT_THAT(gpus.for_channels(0), ElementsAre(0, 1)) << "of the next connection";
}

TEST_F(GpusTest, PrivateMemoryIsServedByItsOwnDeviceAlone) {
  ASSERT_TRUE(gpus.add_memory(1, true));
  ASSERT_TRUE(gpus.add_memory(0, false));
  EXPECT_THAT(enabled, UnorderedElementsAre(std::pair{1, 0})) << "nobody reaches what device 1 has";
  EXPECT_THAT(gpus.for_channels(0), ElementsAre(1));
  EXPECT_FALSE(gpus.add_memory(0, true));
  EXPECT_TRUE(gpus.add_memory(1, true));
}

TEST_F(GpusTest, PrivateMemoryIsRefusedOnceOtherDevicesHaveChannels) {
  ASSERT_TRUE(gpus.add_memory(0, false));
  ASSERT_TRUE(gpus.add_memory(1, false));
  EXPECT_THAT(gpus.for_channels(0), ElementsAre(0, 1));
  const Status refused = gpus.add_memory(1, true);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("channels serve device 0"));
}

}  // namespace
}  // namespace p2p::nccl_net
