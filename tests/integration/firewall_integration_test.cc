// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/hex.h"
#include "support/peer.h"

namespace p2p::testing::firewall {
namespace {

constexpr std::size_t kSize = 3'000'000;
constexpr std::uint16_t kInner = 5000;
constexpr std::uint16_t kOuter = 4000;

/// A client's network and a server's, with a router between them. Network namespaces; gone with the object.
class Networks {
 public:
  /// The networks' addresses are LEFT1 and LEFT9, RIGHT1 and RIGHT9: "10.95.0.", "fd00:95::".
  Networks(const std::string& left_net, const std::string& right_net, int bits)
      : left_net_(left_net), right_net_(right_net) {
    const bool v6 = left_net.find(':') != std::string::npos;
    for (const std::string& host : {left_, router_, right_}) {
      must({"ip", "netns", "add", host});
      must({"ip", "-n", host, "link", "set", "lo", "up"});
    }
    must({"ip", "netns", "exec", router_, "sysctl", "-q",
          v6 ? "net.ipv6.conf.all.forwarding=1" : "net.ipv4.ip_forward=1"});
    join(left_, "toleft", left_net, bits);
    join(right_, "toright", right_net, bits);
  }
  ~Networks() {
    for (const std::string& host : {left_, router_, right_}) (void)run({"ip", "netns", "del", host});
  }
  Networks(const Networks&) = delete;
  Networks& operator=(const Networks&) = delete;

  const Status& made() const { return made_; }
  std::vector<std::string> left() const { return {"ip", "netns", "exec", left_}; }
  std::vector<std::string> right() const { return {"ip", "netns", "exec", right_}; }

  void add_route(bool left) {
    const std::string& net = left ? left_net_ : right_net_;
    must({"ip", "-n", left ? left_ : right_, "route", "add", "default", "via", net + "9"});
  }

  /// Rules of the router.
  void rule(const std::string& text) { must({"ip", "netns", "exec", router_, "nft", text}); }

 private:
  void must(const std::vector<std::string>& words) {
    if (made_) made_ = run(words);
  }

  void join(const std::string& host, const std::string& there, const std::string& net, int bits) {
    must({"ip", "-n", host, "link", "add", "e0", "type", "veth", "peer", "name", there, "netns", router_});
    add_address(host, "e0", fmt::format("{}1/{}", net, bits));
    add_address(router_, there, fmt::format("{}9/{}", net, bits));
  }

  void add_address(const std::string& host, const std::string& device, const std::string& address) {
    std::vector<std::string> words{"ip", "-n", host, "addr", "add", address, "dev", device};
    if (address.find(':') != std::string::npos) words.emplace_back("nodad");  // of use at once
    must({"ip", "-n", host, "link", "set", "dev", device, "up"});
    must(words);
  }

  const std::string left_ = fmt::format("p2p-{}-c", ::getpid());
  const std::string router_ = fmt::format("p2p-{}-n", ::getpid());
  const std::string right_ = fmt::format("p2p-{}-s", ::getpid());
  const std::string left_net_;
  const std::string right_net_;
  Status made_;
};

class FirewallTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
    if (!run({"nft", "--version"})) GTEST_SKIP() << "nft (nftables) is not installed";
    std::ofstream(key_) << "a key for both sides of the wall\n";
    std::filesystem::permissions(key_, std::filesystem::perms::owner_read);
  }
  void TearDown() override { std::filesystem::remove(key_); }

  EndpointPlan plan(const std::string& address, std::uint16_t port = 0) const {
    EndpointPlan plan;
    plan.transport = "tcp";
    plan.address = address;
    plan.port = port;
    plan.streams = 3;
    plan.key_file = key_;
    return plan;
  }

  /// Either side writes into the other's memory and reads from it.
  static void expect_moves(Peer& mine, std::uint64_t my_end, Peer& other) {
    const PeerRegion own = mine.region(kSize);
    const PeerRegion theirs = other.region(kSize);
    mine.number(fmt::format("fill {} 0 {} 1", own.index, kSize));
    const std::uint64_t id = mine.number(fmt::format("import {} {}", my_end, to_hex(theirs.descriptor)));
    const std::string where =
        fmt::format("{} {} 0 {} {} {}", my_end, own.index, kSize, id, theirs.descriptor.address);
    EXPECT_TRUE(is_ok(mine.wait(mine.number("write " + where))));
    EXPECT_TRUE(is_ok(status_of(other.call(fmt::format("check {} 0 {} 1", theirs.index, kSize)))));
    other.number(fmt::format("fill {} 0 {} 2", theirs.index, kSize));
    EXPECT_TRUE(is_ok(mine.wait(mine.number("read " + where))));
    EXPECT_TRUE(is_ok(status_of(mine.call(fmt::format("check {} 0 {} 2", own.index, kSize)))));
  }

  static void expect_peers(Peer& client, Peer& server) {
    const auto at_client = client.number(fmt::format("connect {} {} 20000", server.address(), server.port()));
    const auto at_server = server.accept();
    expect_moves(client, at_client, server);
    expect_moves(server, at_server, client);
  }

  const std::string key_ =
      (std::filesystem::temp_directory_path() / fmt::format("p2p-wall-key-{}", ::getpid())).string();
};

// Neither side could dial the other by its own address.
TEST_F(FirewallTest, OneForwardedPortBetweenTwoNetworks) {
  Networks networks("10.95.0.", "10.96.0.", 24);
  networks.add_route(false);
  networks.rule("add table ip t");
  networks.rule("add chain ip t before { type nat hook prerouting priority -100; }");
  networks.rule(
      fmt::format("add rule ip t before iifname toleft tcp dport {} dnat to 10.96.0.1:{}", kOuter, kInner));
  networks.rule("add chain ip t after { type nat hook postrouting priority 100; }");
  networks.rule("add rule ip t after oifname toright masquerade");
  ASSERT_TRUE(is_ok(networks.made()));
  Peer client(plan("10.95.0.1"), networks.left());
  EndpointPlan behind = plan("10.96.0.1", kInner);
  behind.announce = fmt::format("10.95.0.9:{}", kOuter);
  Peer server(behind, networks.right());
  EXPECT_EQ(server.address(), "10.95.0.9");
  EXPECT_EQ(server.port(), kOuter);
  expect_peers(client, server);
}

TEST_F(FirewallTest, OneOpenPort) {
  Networks networks("10.95.0.", "10.96.0.", 24);
  networks.add_route(true);
  networks.add_route(false);
  networks.rule("add table ip t");
  networks.rule("add chain ip t through { type filter hook forward priority 0; policy drop; }");
  networks.rule("add rule ip t through ct state established accept");
  networks.rule(fmt::format("add rule ip t through iifname toleft tcp dport {} accept", kInner));
  ASSERT_TRUE(is_ok(networks.made()));
  Peer client(plan("10.95.0.1"), networks.left());
  Peer server(plan("", kInner), networks.right());
  EXPECT_EQ(server.address(), "10.96.0.1");
  expect_peers(client, server);
}

// By the defaults: what is announced is of IPv6, and it is listened to there.
TEST_F(FirewallTest, OnlyIPv6) {
  Networks networks("fd00:95::", "fd00:96::", 64);
  networks.add_route(true);
  networks.add_route(false);
  ASSERT_TRUE(is_ok(networks.made()));
  Peer client(plan(""), networks.left());
  Peer server(plan(""), networks.right());
  EXPECT_EQ(server.address(), "fd00:96::1");
  expect_peers(client, server);
}

}  // namespace
}  // namespace p2p::testing::firewall
