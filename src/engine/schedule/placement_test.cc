// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/placement.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "support/idle_thread.h"

namespace p2p::engine {
namespace {

using testing::IdleThread;
using topology::Cpus;

/// Two threads of an endpoint, and where its GPUs are.
struct PlacementTest : ::testing::Test {
  void SetUp() override {
    if (all.size() < 2) GTEST_SKIP() << "this process may use one CPU only";
  }

  void expect_on(const Cpus& cpus) {
    for (IdleThread& thread : threads) EXPECT_EQ(topology::cpus_of(thread.handle()).value(), cpus);
  }

  const Cpus all = topology::cpus_of(::pthread_self()).value();
  const unsigned first = *all.begin();
  const unsigned last = *all.rbegin();
  IdleThread threads[2];
  std::map<int, Cpus> gpus;
  std::vector<int> asked;
  Placement placement{{threads[0].handle(), threads[1].handle()}, [this](int device) -> Result<Cpus> {
                        asked.push_back(device);
                        if (!gpus.contains(device)) return fail(ErrorCode::kSystem, "nobody knows");
                        return gpus[device];
                      }};
};

TEST_F(PlacementTest, ThreadsFollowTheGpus) {
  gpus = {{0, {first}}, {3, {last}}};
  expect_on(all);
  placement.use(0);
  expect_on({first});
  placement.use(3);
  expect_on({first, last});
  placement.use(0);
  placement.use(3);
  EXPECT_EQ(asked, (std::vector{0, 3})) << "each device is looked up once";
}

TEST_F(PlacementTest, UnknownAndForbiddenPlacesChangeNothing) {
  gpus = {{0, {topology::kMostCpus - 1}}, {1, {}}, {2, {last}}};
  placement.use(0);
  placement.use(1);
  placement.use(7);
  expect_on(all);
  placement.use(2);
  placement.use(8);
  expect_on({last});
}

TEST(Placement, DevicesThatAreNotThereHaveNoPlace) { EXPECT_FALSE(Placement::near_device(1 << 20)); }

}  // namespace
}  // namespace p2p::engine
