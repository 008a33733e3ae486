// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/default_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace p2p::socket {
namespace {

using ::testing::HasSubstr;

Interface make(const std::string& name, const std::string& address, unsigned prefix_bits = 24) {
  return {name, Address::parse(address, 0).value(), name == "lo", prefix_bits};
}

const std::vector<Interface> kHost{
    make("lo", "127.0.0.1", 8),  make("docker0", "172.17.0.1", 16), make("eth0", "10.0.0.5"),
    make("eth1", "10.1.0.5"),    make("eth1", "fd00::5", 64),       make("eth0", "fe80::5%1", 64),
    make("ens3", "192.168.7.5"),
};

std::string choose(const AddressWish& wish, const std::vector<Interface>& interfaces,
                   const std::string& routed = "") {
  std::optional<Address> route;
  if (!routed.empty()) route = Address::parse(routed, 0).value();
  const auto chosen = choose_address(wish, interfaces, route);
  return chosen ? chosen->text() : chosen.error().message;
}

TEST(DefaultAddress, PrefersTheDefaultRouteAndThenAnythingThatIsNotDockerOrLoopback) {
  EXPECT_EQ(choose({}, kHost, "10.1.0.5"), "10.1.0.5");
  EXPECT_EQ(choose({}, kHost), "10.0.0.5");
  EXPECT_EQ(choose({}, {kHost[0], kHost[1]}), "172.17.0.1");
  EXPECT_EQ(choose({}, {kHost[0]}), "127.0.0.1");
  EXPECT_EQ(choose({}, {kHost[0], kHost[4]}), "fd00::5");
}

TEST(DefaultAddress, PrefersInfiniBandAndThenTheNetworkThatIsNear) {
  EXPECT_EQ(choose({.interfaces = "", .near = "192.168.7.200"}, kHost, "10.1.0.5"), "192.168.7.5");
  EXPECT_EQ(choose({.interfaces = "", .near = "fd00::1"}, kHost, "10.0.0.5"), "fd00::5");
  EXPECT_EQ(choose({.interfaces = "", .near = "192.168.8.200"}, kHost, "10.1.0.5"), "10.1.0.5");
  EXPECT_EQ(choose({.interfaces = "", .near = "head-node"}, kHost, "10.1.0.5"), "10.1.0.5");
  std::vector<Interface> with_ib = kHost;
  with_ib.push_back(make("ibP2s2", "10.9.0.5"));
  EXPECT_EQ(choose({.interfaces = "", .near = "192.168.7.200"}, with_ib, "10.1.0.5"), "10.9.0.5");
}

TEST(DefaultAddress, TakesInterfacesAsWished) {
  EXPECT_EQ(choose({.interfaces = "eth1", .near = ""}, kHost, "10.0.0.5"), "10.1.0.5");
  EXPECT_EQ(choose({.interfaces = "wlan,ens", .near = ""}, kHost, "10.0.0.5"), "192.168.7.5");
  EXPECT_EQ(choose({.interfaces = "eth", .near = ""}, kHost, "10.1.0.5"), "10.1.0.5");
  EXPECT_EQ(choose({.interfaces = "=ens3", .near = ""}, kHost), "192.168.7.5");
  EXPECT_EQ(choose({.interfaces = "^eth", .near = ""}, kHost, "10.0.0.5"), "192.168.7.5");
  EXPECT_EQ(choose({.interfaces = "^eth,ens,docker", .near = ""}, kHost), "127.0.0.1");
  EXPECT_EQ(choose({.interfaces = "lo", .near = ""}, kHost, "10.0.0.5"), "127.0.0.1");
}

TEST(DefaultAddress, NamesWhatThereIsWhenNothingMatches) {
  for (const char* const wish : {"wlan", "=eth", ",", "^lo,docker,eth,ens"}) {
    const std::string said = choose({.interfaces = wish, .near = ""}, kHost, "10.0.0.5");
    EXPECT_THAT(said, HasSubstr(std::string("\"") + wish + "\""));
    EXPECT_THAT(said, HasSubstr("docker0"));
  }
}

std::vector<std::string> others(const AddressWish& wish, const std::vector<Interface>& interfaces,
                                const std::string& address) {
  std::vector<std::string> texts;
  for (const Address& one : choose_others(wish, interfaces, Address::parse(address, 0).value())) {
    texts.push_back(one.text());
  }
  return texts;
}

TEST(DefaultAddress, OthersAreOfOtherNetworksThatPeersMayReach) {
  using ::testing::ElementsAre;
  using ::testing::IsEmpty;
  std::vector<Interface> host = kHost;
  for (const char* const name : {"eth0", "eth2", "eth2"}) host.push_back(make(name, "10.2.0.5"));
  for (const char* const name : {"br-12ab", "veth7", "virbr0", "cali9", "kube-ipvs0"}) {
    host.push_back(make(name, "10.3.0.5"));
  }
  EXPECT_THAT(others({}, host, "10.0.0.5"), ElementsAre("10.1.0.5", "192.168.7.5", "10.2.0.5"));
  EXPECT_THAT(others({}, host, "fd00::5"), IsEmpty()) << "none of another family";
  EXPECT_THAT(others({.interfaces = "^ens", .near = ""}, kHost, "10.0.0.5"), ElementsAre("10.1.0.5"));
  EXPECT_THAT(others({}, kHost, "127.0.0.1"), IsEmpty()) << "whoever is there is on this host";
  EXPECT_THAT(others({}, kHost, "fe80::5%1"), IsEmpty());
}

TEST(DefaultAddress, OfThisHostIsNumeric) {
  const auto address = default_address({});
  ASSERT_TRUE(address) << address.error().message;
  EXPECT_TRUE(Address::parse(*address, 0));
  EXPECT_EQ(default_address({.interfaces = "=lo", .near = ""}).value(), "127.0.0.1");
}

}  // namespace
}  // namespace p2p::socket
