// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A plugin whose init ends the process where CUDA has no device, as that of GPUDirect-TCPX does.
#include <gtest/gtest.h>

#include <cstdlib>

#include "drivers/cuda/device.h"
#include "support/devices.h"
#include "transport/nccl_net/nccl_net.h"

namespace p2p::nccl_net {
namespace {

TEST(InitThatExits, IsAReasonWhyThePluginIsNotUsedAndNoMore) {
  if (cuda::available()) GTEST_SKIP() << "init is called here, since CUDA is there";
  ::setenv("SOFTNET_INTERFACES", "lo", 1);
  ::setenv("SOFTNET_UNPACK", "1", 1);
  ::setenv("SOFTNET_HABITS", "init_exit", 1);
  ::setenv("SOFTNET_NAME", "GPUDirectTCPX_v7", 1);
  Options set;
  set.nccl_net.plugin = SOFTNET_PATH;
  const Status unasked = make(set, test_devices(set))->probe();
  ASSERT_FALSE(unasked);
  EXPECT_EQ(unasked.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(unasked.error().message.find("receive into CUDA memory"), std::string::npos)
      << unasked.error().message;
  set.nccl_net.host_pool = true;  // needs no CUDA, so that init is called
  const Status tried = make(set, test_devices(set))->probe();
  ASSERT_FALSE(tried);
  EXPECT_NE(tried.error().message.find("its init ends the process"), std::string::npos)
      << tried.error().message;
}

}  // namespace
}  // namespace p2p::nccl_net
