// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/channel_address.h"

#include <gtest/gtest.h>

namespace p2p::nccl_net {
namespace {

ChannelAddress example() {
  ChannelAddress address{.chunk_bytes = 524288, .nic = "eth3"};
  address.handle.fill(std::byte{7});
  return address;
}

TEST(ChannelAddress, ComesBackAsItWas) {
  const auto decoded = ChannelAddress::decode(example().encode());
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->handle, example().handle);
  EXPECT_EQ(decoded->chunk_bytes, 524288u);
  EXPECT_EQ(decoded->nic, "eth3");
}

TEST(ChannelAddress, RefusesAnythingElse) {
  const Bytes good = example().encode();
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(ChannelAddress::decode(std::span(good).first(size))) << size << " bytes";
  }
  Bytes more = good;
  more.push_back(std::byte{});
  EXPECT_FALSE(ChannelAddress::decode(more));
  for (const std::size_t at : {0, 4}) {
    Bytes other = good;
    other[at] ^= std::byte{1};
    EXPECT_FALSE(ChannelAddress::decode(other)) << "byte " << at;
  }
  ChannelAddress small = example();
  small.chunk_bytes = 100;
  EXPECT_FALSE(ChannelAddress::decode(small.encode()));
}

TEST(ChannelAddress, ConnectsByTheNicOfThePeersNetwork) {
  std::vector<Device> devices(4);
  for (int index = 0; index < 4; ++index) {
    devices[static_cast<std::size_t>(index)].index = index;
    devices[static_cast<std::size_t>(index)].properties.name = "eth" + std::to_string(index + 1);
  }
  EXPECT_EQ(device_towards(devices, devices[0], "eth1").index, 0);
  EXPECT_EQ(device_towards(devices, devices[0], "eth3").index, 2) << "not crosswise";
  EXPECT_EQ(device_towards(devices, devices[1], "ens5").index, 1) << "called otherwise there";
  EXPECT_EQ(device_towards(devices, devices[1], "").index, 1);
}

}  // namespace
}  // namespace p2p::nccl_net
