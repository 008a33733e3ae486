// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/devices.h"
#include "transport/nccl_net/nccl_net.h"

namespace p2p::nccl_net {
namespace {

TEST(HostPool, IsNotAskedOfAPluginWhosePoolIsAGpus) {
  ::setenv("SOFTNET_INTERFACES", "lo", 1);
  ::setenv("SOFTNET_UNPACK", "1", 1);
  ::setenv("SOFTNET_NAME", "GPUDirectTCPX_v7", 1);
  Options set;
  set.nccl_net.plugin = UNMARKED_PATH;
  set.nccl_net.host_pool = true;
  const Status refused = make(set, test_devices(set))->probe();
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("GPUDirectTCPX_v7 has no pool in host memory"));
}

}  // namespace
}  // namespace p2p::nccl_net
