// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// With a driver of which this library knows nothing but its name.
#include "drivers/cuda/foreign_pointer.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace p2p::cuda {
namespace {

TEST(ForeignPointer, IsWhatTheProgramsDriverSays) {
  int host = 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's double calls what lies here a device's
  const auto* const device = reinterpret_cast<const void*>(std::uintptr_t{0x700000000000});
  // NOLINTNEXTLINE(performance-no-int-to-ptr): and this managed
  const auto* const managed = reinterpret_cast<const void*>(std::uintptr_t{0x710000000000});
  EXPECT_FALSE(is_on_a_device(device)) << "no driver is loaded";
  void* const driver = ::dlopen(FAKE_DRIVER_PATH, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(driver, nullptr) << ::dlerror();
  EXPECT_TRUE(is_on_a_device(device));
  EXPECT_FALSE(is_on_a_device(managed));
  EXPECT_FALSE(is_on_a_device(&host));
  ::dlclose(driver);
}

}  // namespace
}  // namespace p2p::cuda
