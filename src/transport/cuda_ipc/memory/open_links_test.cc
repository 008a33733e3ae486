// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/memory/open_links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"

namespace p2p::cuda_ipc {
namespace {

bool is_active(int device) {
  const auto active = cuda::active_devices();
  return std::find(active.begin(), active.end(), device) != active.end();
}

TEST(OpenLinksTest, ADeviceThatIsNotThereOpensNothing) {
  OpenLinks links;
  links.open(cuda::device_count());
  EXPECT_FALSE(is_active(cuda::device_count()));
}

TEST(OpenLinksTest, MakesNoContextOnTheGpusThatItOpensTheWayTo) {
  if (cuda::device_count() < 2 || !cuda::reaches(0, 1))
    GTEST_SKIP() << "needs two GPUs that reach each other";
  if (is_active(1)) GTEST_SKIP() << "another test uses GPU 1";
  const auto mine = cuda::DeviceBuffer::allocate(0, 4096);
  ASSERT_TRUE(mine);
  auto links = std::make_unique<OpenLinks>();
  links->open(0);
  links->open(0);
  EXPECT_TRUE(is_active(0));
  EXPECT_FALSE(is_active(1));
  links.reset();
  EXPECT_FALSE(is_active(1));

  OpenLinks again;
  again.open(0);
  const auto theirs = cuda::DeviceBuffer::allocate(1, 4096);  // the program's own affair
  ASSERT_TRUE(theirs);
  again.open(1);
  EXPECT_TRUE(is_active(1));
}

}  // namespace
}  // namespace p2p::cuda_ipc
