// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/nearest.h"

#include <gmock/gmock.h>

namespace p2p::nccl_net {
namespace {

using ::testing::ElementsAre;

Device device(int index, const std::string& path) {
  Device made{.index = index};
  made.properties.name = "eth" + std::to_string(index);
  made.properties.pci_path = path;
  return made;
}

std::vector<std::string> labels(const std::vector<Device>& devices) {
  std::vector<std::string> found;
  for (const Device& device : devices) found.push_back(device.label());
  return found;
}

// Two switches with a NIC each, and one NIC on the other processor.
const std::vector<Device> kMachine{
    device(1, "/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/0000:04:00.0/0000:06:00.0"),
    device(2, "/sys/devices/pci0000:00/0000:00:02.0/0000:09:00.0/0000:0a:00.0/0000:0c:00.0"),
    device(3, "/sys/devices/pci0000:80/0000:80:01.0/0000:83:00.0/0000:86:00.0")};

TEST(Nearest, TakesTheDeviceUnderTheGpusSwitch) {
  EXPECT_THAT(labels(nearest(kMachine,
                             "/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/0000:04:01.0/0000:05:00.0")),
              ElementsAre("eth1"));
  EXPECT_THAT(labels(nearest(kMachine,
                             "/sys/devices/pci0000:00/0000:00:02.0/0000:09:00.0/0000:0a:01.0/0000:0b:00.0")),
              ElementsAre("eth2"));
  EXPECT_THAT(labels(nearest(kMachine, "/sys/devices/pci0000:80/0000:80:01.0/0000:83:00.0/0000:84:00.0")),
              ElementsAre("eth3"));
}

TEST(Nearest, TakesAllThatAreEquallyNear) {
  EXPECT_THAT(labels(nearest(kMachine, "/sys/devices/pci0000:00/0000:00:07.0/0000:30:00.0")),
              ElementsAre("eth1", "eth2"));
}

TEST(Nearest, TakesAllWhereAPlaceIsUnknown) {
  EXPECT_EQ(nearest(kMachine, "").size(), 3U);
  std::vector<Device> machine = kMachine;
  machine.push_back(device(4, ""));
  EXPECT_EQ(nearest(machine, kMachine[0].properties.pci_path).size(), 4U);
}

TEST(Nearest, AnAddressThatIsNotOnTheBusHasNoPlace) { EXPECT_EQ(pci_path_of("ffff:ff:1f.7"), ""); }

}  // namespace
}  // namespace p2p::nccl_net
