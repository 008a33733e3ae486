// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Which ports, limits and settings are used, and what is said where they cannot be had.
#include "transport/rdma/fabric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <filesystem>

#include "drivers/verbs/testing/fake_provider.h"
#include "transport/rdma/channel_pair.h"
#include "transport/rdma/link.h"
#include "transport/rdma/region.h"

namespace p2p::rdma {
namespace {

using ::testing::AllOf;
using testing::ChannelPair;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using verbs::testing::FakeProvider;

TEST(RdmaPlaceTest, FoldersInCommon) {
  const std::string root = "/sys/devices/pci0000:00";
  EXPECT_EQ(shared_folders(root + "/0000:00:01.0/a", root + "/0000:00:01.0/b"), 4U);
  EXPECT_EQ(shared_folders(root + "/0000:00:01.0", root + "/0000:00:02.0"), 3U);
  EXPECT_EQ(shared_folders(root + "/0000:00:1", root + "/0000:00:10"), 3U) << "names count whole";
  EXPECT_EQ(shared_folders("", root), 0U);
}

TEST(RdmaPlaceTest, AllPortsThatAGpuIsCloseTo) {
  const std::array<Nic, 4> nics{};
  const std::string far = "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0";
  const std::string near = "/sys/devices/pci0000:00/0000:00:01.0/";
  const std::vector<NicPlace> places{{&nics[0], far, 10},
                                     {&nics[1], near + "0000:01:00.0", 21},
                                     {&nics[2], near + "0000:02:00.0", 21},
                                     {&nics[3], "", 0}};
  EXPECT_THAT(nearest(places, {near + "0000:03:00.0"}), ElementsAre(&nics[1], &nics[2]));
  EXPECT_THAT(nearest(places, {near + "0000:03:00.0", far}), ElementsAre(&nics[0]));
  EXPECT_THAT(nearest(places, {}), ElementsAre(&nics[3], &nics[0], &nics[1], &nics[2]));
  EXPECT_THAT(nearest({}, {near}), ElementsAre());
}

TEST(RdmaPlaceTest, NumaDistance) {
  EXPECT_EQ(numa_distance(-1), 0);
  EXPECT_EQ(numa_distance(100'000), 0);
  if (!std::filesystem::exists("/sys/devices/system/node/node0/distance")) {
    EXPECT_EQ(numa_distance(0), 0);
    return;
  }
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  unsigned cpu = 0;
  unsigned node = 0;
  ASSERT_EQ(::getcpu(&cpu, &node), 0);
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET(cpu, &here);
  ASSERT_EQ(::sched_setaffinity(0, sizeof here, &here), 0);
  EXPECT_EQ(numa_distance(static_cast<int>(node)), 10);
  EXPECT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
}

class RdmaFabricTest : public ::testing::Test {
 protected:
  Status probe(const RdmaOptions& rdma) {
    Options options;
    options.rdma = rdma;
    return RdmaTransport(options, &provider_.library()).probe();
  }

  FakeProvider provider_{{.devices = 2, .requests = 200, .pieces = 30, .reads = 12, .pieces_granted = 9}};
};

TEST_F(RdmaFabricTest, EveryPortIsARail) {
  const RdmaTransport transport(Options{}, &provider_.library());
  const auto names = [&] {
    std::vector<std::string> found;
    for (const Rail& rail : transport.rails({})) found.push_back(rail.name);
    return found;
  };
  EXPECT_THAT(names(), ElementsAre("fake0:1", "fake1:1"));
  provider_.set_port(0, false);
  EXPECT_THAT(names(), ElementsAre("fake1:1"));
  provider_.set_port(0, true);
}

TEST_F(RdmaFabricTest, WhatIsAskedForAndNotThereIsAnError) {
  EXPECT_TRUE(probe({.devices = {"fake1"}}));
  EXPECT_TRUE(probe({.devices = {"fake1:1", "fake0"}}));
  EXPECT_TRUE(probe({.gid_index = 3}));
  EXPECT_TRUE(probe({.mtu = 1024}));
  const std::pair<RdmaOptions, const char*> wrong[] = {{{.devices = {"mlx5_0"}}, "mlx5_0"},
                                                       {{.devices = {"fake0:2"}}, "fake0:2"},
                                                       {{.gid_index = 9}, "no GID 9"},
                                                       {{.mtu = 8192}, "not 8192"}};
  for (const auto& [options, why] : wrong) {
    const Status status = probe(options);
    ASSERT_FALSE(status) << why;
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(status.error().message, HasSubstr(why));
  }
  provider_.set_port(1, false);
  EXPECT_FALSE(probe({.devices = {"fake1"}}));
  provider_.set_port(1, true);
}

TEST_F(RdmaFabricTest, AQueuePairIsMadeWithinTheDevicesLimits) {
  const auto fabric = Fabric::open(provider_.library(), {}).value();
  const auto link = Link::open(*fabric, *fabric->find("fake0:1")).value();
  EXPECT_EQ(link->window, 199U) << "one of the device's requests is the greeting's";
  EXPECT_EQ(link->pair->limits().pieces, 7U) << "half of half of what the device says, and refused";
  EXPECT_EQ(link->pair->limits().inline_bytes, 64U);
}

TEST_F(RdmaFabricTest, OptionsAndLimitsReachTheQueuePairs) {
  Options options;
  options.rdma = {.devices = {"fake1"},
                  .gid_index = 3,
                  .mtu = 1024,
                  .timeout = 17,
                  .retries = 5,
                  .service_level = 4,
                  .traffic_class = 104};
  ChannelPair pair(options, &provider_.library());
  pair.connect();
  const FakeProvider::Connected connected = provider_.connected();
  EXPECT_EQ(connected.gid_index, 3U);
  EXPECT_EQ(connected.mtu, 1024U);
  EXPECT_EQ(connected.timeout, 17U);
  EXPECT_EQ(connected.retries, 5U);
  EXPECT_EQ(connected.service_level, 4U);
  EXPECT_EQ(connected.traffic_class, 104U);
  EXPECT_EQ(connected.reads_in, 12U) << "of the device";
  EXPECT_EQ(connected.reads_out, 12U) << "of the peer's device";
  EXPECT_THAT(pair.left.channel->describe(), AllOf(HasSubstr("fake1:1"), HasSubstr("MTU 1024")));
}

TEST_F(RdmaFabricTest, ByDefaultASilentPeerIsNoticedWithinTheKeepaliveTime) {
  Options options;
  ChannelPair pair(options, &provider_.library());
  pair.connect();
  const FakeProvider::Connected connected = provider_.connected();
  const double wait = 4.096e-6 * static_cast<double>(1U << connected.timeout) * (connected.retries + 1);
  const double keepalive = std::chrono::duration<double>(options.keepalive).count();
  EXPECT_LE(wait, keepalive / 2);
  EXPECT_GT(wait, keepalive / 8) << "so short a silence is no death";
}

// There is no GPU here: the address may be any, as nothing looks at it but the device.
class RdmaCudaRegionTest : public ::testing::Test {
 protected:
  RegionInfo info(std::size_t size) {
    return {.id = RegionId{1}, .base = memory_.data(), .size = size, .place = {MemoryKind::kCuda, 0}};
  }

  FakeProvider provider_{{.most_registered = 4096}};
  std::vector<std::byte> memory_ = std::vector<std::byte>(8192);
};

TEST_F(RdmaCudaRegionTest, ByAddressWhereThereIsNoDmaBuffer) {
  RdmaTransport transport(Options{}, &provider_.library());
  const auto registration = transport.register_memory(info(4096));
  ASSERT_TRUE(registration) << registration.error().message;
  EXPECT_FALSE((*registration)->export_key().empty());
}

TEST_F(RdmaCudaRegionTest, BothReasonsWhereTheDeviceTakesNeither) {
  RdmaTransport transport(Options{}, &provider_.library());
  const auto registration = transport.register_memory(info(8192));
  ASSERT_FALSE(registration);
  EXPECT_EQ(registration.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(
      registration.error().message,
      AllOf(HasSubstr("by DMA-BUF: "), HasSubstr("by peer memory: register 8192 bytes"), HasSubstr("fake0")));
}

}  // namespace
}  // namespace p2p::rdma
