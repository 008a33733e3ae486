// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <string>
#include <vector>

#include "support/eventually.h"
#include "support/hex.h"
#include "support/peer.h"

namespace p2p::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSize = std::size_t{16} << 20;

/// Two hosts with several networks between them, each by way of a router: one for control, the rest rails of
/// 400 Mbit/s. Network namespaces; gone with the object.
class Rails {
 public:
  explicit Rails(int rails) {
    for (const std::string& host : {left_, router_, right_}) {
      must({"ip", "netns", "add", host});
      must({"ip", "-n", host, "link", "set", "lo", "up"});
    }
    must({"ip", "netns", "exec", router_, "sysctl", "-q", "net.ipv4.ip_forward=1"});
    for (int i = 0; i <= rails; ++i) {
      join(left_, i, "l", kLeftNet);
      join(right_, i, "r", kRightNet);
      route(left_, i, kLeftNet, kRightNet);
      route(right_, i, kRightNet, kLeftNet);
      if (i != 0) slow_down(i);
    }
  }
  ~Rails() {
    for (const std::string& host : {left_, router_, right_}) (void)run({"ip", "netns", "del", host});
  }
  Rails(const Rails&) = delete;
  Rails& operator=(const Rails&) = delete;

  const Status& made() const { return made_; }
  std::vector<std::string> left() const { return {"ip", "netns", "exec", left_}; }
  std::vector<std::string> right() const { return {"ip", "netns", "exec", right_}; }

  /// The router drops what comes for a rail, in both directions, and tells nobody; or does so no more.
  void set_dark(int rail, bool dark) {
    for (const int net : {kLeftNet, kRightNet}) {
      must({"ip", "-n", router_, "route", dark ? "add" : "del", "blackhole",
            fmt::format("10.{}.{}.1/32", net, rail)});
    }
  }

  /// The ports on the left of what is connected to the right by the path of control.
  std::vector<std::string> control_ports() const {
    std::vector<std::string> ports;
    auto process = Process::spawn(
        {"ip", "netns", "exec", left_, "ss", "-Htn", "state", "established", "dst", "10.98.0.1"});
    while (process) {
      const auto line = process->read_line(kLimit);
      if (!line) break;
      std::istringstream words(*line);
      std::string received;
      std::string sent;
      std::string local;
      words >> received >> sent >> local;
      ports.push_back(local.substr(local.rfind(':') + 1));
    }
    return ports;
  }

  /// The router knows nothing more of a connection from this port, and drops what comes for it.
  void forget(const std::string& port) {
    const std::vector<std::string> nft{"ip", "netns", "exec", router_, "nft"};
    for (const std::string& rule :
         {std::string("add table ip p2p"),
          std::string("add chain ip p2p f { type filter hook forward priority 0; policy accept; }"),
          "add rule ip p2p f tcp sport " + port + " drop", "add rule ip p2p f tcp dport " + port + " drop"}) {
      std::vector<std::string> command = nft;
      command.push_back(rule);
      must(command);
    }
  }

  /// Bytes that went over a rail so far, both ways.
  std::uint64_t carried(int rail) {
    std::uint64_t sum = 0;
    for (const char* side : {"l", "r"}) {
      const std::string file = fmt::format("/sys/class/net/{}{}/statistics/tx_bytes", side, rail);
      auto process = Process::spawn({"ip", "netns", "exec", router_, "cat", file});
      const auto line = process ? process->read_line(kLimit) : tl::unexpected(process.error());
      if (line) sum += std::stoull(*line);
    }
    return sum;
  }

 private:
  static constexpr int kLeftNet = 97;
  static constexpr int kRightNet = 98;

  void must(const std::vector<std::string>& words) {
    if (made_) made_ = run(words);
  }

  // The host's interface eN, which the router calls by `side`.
  void join(const std::string& host, int i, const char* side, int net) {
    const std::string here = fmt::format("e{}", i);
    const std::string there = fmt::format("{}{}", side, i);
    must({"ip", "-n", host, "link", "add", here, "type", "veth", "peer", "name", there, "netns", router_});
    must({"ip", "-n", host, "addr", "add", fmt::format("10.{}.{}.1/30", net, i), "dev", here});
    must({"ip", "-n", router_, "addr", "add", fmt::format("10.{}.{}.2/30", net, i), "dev", there});
    must({"ip", "-n", host, "link", "set", here, "up"});
    must({"ip", "-n", router_, "link", "set", there, "up"});
  }

  void route(const std::string& host, int i, int from, int to) {
    must({"ip", "-n", host, "route", "add", fmt::format("10.{}.{}.0/30", to, i), "via",
          fmt::format("10.{}.{}.2", from, i)});
  }

  void slow_down(int i) {
    for (const char* side : {"l", "r"}) {
      must({"ip", "netns", "exec", router_, "tc", "qdisc", "add", "dev", fmt::format("{}{}", side, i), "root",
            "tbf", "rate", "400mbit", "burst", "256k", "latency", "50ms"});
    }
  }

  const std::string left_ = fmt::format("p2p-{}-l", ::getpid());
  const std::string router_ = fmt::format("p2p-{}-m", ::getpid());
  const std::string right_ = fmt::format("p2p-{}-r", ::getpid());
  Status made_;
};

class RailsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  }

  static EndpointPlan plan(const char* address, const char* interfaces, std::chrono::milliseconds keepalive) {
    EndpointPlan plan;
    plan.keepalive = keepalive;
    plan.transport = "tcp";
    plan.address = address;
    plan.streams = 1;
    plan.workers = kSharingWorkers;  // both rails write the same memory, one after the other
    plan.interfaces = interfaces;
    return plan;
  }

  /// Two processes with a region each; the left one is connected to the right one and knows its region.
  struct Joined {
    explicit Joined(const Rails& rails, std::chrono::milliseconds keepalive = EndpointPlan{}.keepalive)
        : left(plan("10.97.0.1", "e1,e2", keepalive), rails.left()),
          right(plan("10.98.0.1", "e1,e2", keepalive), rails.right()) {
      connection = left.number(fmt::format("connect {} {} 20000", right.address(), right.port()));
      right.accept();
      own = left.region(kSize);
      theirs = right.region(kSize);
      id = left.number(fmt::format("import {} {}", connection, to_hex(theirs.descriptor)));
    }

    Peer left;
    Peer right;
    std::uint64_t connection = 0;
    PeerRegion own;
    PeerRegion theirs;
    std::uint64_t id = 0;  ///< of `theirs`, on the left
  };
};

// A side that only waits for bytes sends none that could stay unanswered.
TEST_F(RailsTest, ADarkRailHoldsUpNeitherReadsNorWrites) {
  Rails rails(2);
  ASSERT_TRUE(is_ok(rails.made()));
  Joined joined(rails);
  auto& [left, right, connection, own, theirs, id] = joined;
  right.number(fmt::format("fill {} 0 {} 1", theirs.index, kSize));
  const auto command = [&](const char* operation, std::size_t from, std::size_t size) {
    return fmt::format("{} {} {} {} {} {} {}", operation, connection, own.index, from, size, id,
                       theirs.descriptor.address + from);
  };
  EXPECT_TRUE(is_ok(left.wait(left.number(command("read", 0, kSize)))));
  EXPECT_TRUE(is_ok(status_of(left.call(fmt::format("check {} 0 {} 1", own.index, kSize)))));
  for (const bool reading : {true, false}) {
    SCOPED_TRACE(reading ? "reads" : "writes");
    std::vector<std::uint64_t> transfers;
    for (int i = 0; i != 4; ++i)
      transfers.push_back(left.number(command(reading ? "read" : "write", 0, kSize)));
    // All four take more than a second, so that it goes dark in their middle.
    EXPECT_TRUE(is_ok(left.wait(transfers.front())));
    rails.set_dark(2, true);
    ASSERT_TRUE(is_ok(rails.made()));
    const auto start = Clock::now();
    for (const std::uint64_t one : transfers) EXPECT_TRUE(is_ok(left.wait(one)));
    EXPECT_LT(Clock::now() - start, EndpointPlan{}.keepalive + std::chrono::seconds(3) + kMargin);
    EXPECT_TRUE(is_ok(status_of(left.call(fmt::format("check {} 0 {} 1", own.index, kSize)))));
    EXPECT_TRUE(is_ok(status_of(right.call(fmt::format("check {} 0 {} 1", theirs.index, kSize)))));
    if (reading) {
      rails.set_dark(2, false);
      ASSERT_TRUE(is_ok(rails.made()));
    }
  }
}

// It is known as lost while it is dark, and carries its part again within 5 s of its return.
TEST_F(RailsTest, ARailThatComesBackCarriesAgain) {
  Rails rails(2);
  ASSERT_TRUE(is_ok(rails.made()));
  Joined joined(rails);
  auto& [left, right, connection, own, theirs, id] = joined;
  const auto channels = [&](const char* wanted, std::chrono::milliseconds limit) {
    const auto deadline = Clock::now() + limit;
    std::string seen;
    do {
      seen = left.call(fmt::format("routes {}", connection)).value_or("");
    } while (!seen.starts_with(wanted) && Clock::now() < deadline);
    EXPECT_TRUE(seen.starts_with(wanted)) << seen;
  };
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    left.number(fmt::format("fill {} 0 {} {}", own.index, kSize, seed));
    std::vector<std::uint64_t> writes;
    const auto write = [&] {
      return left.number(
          fmt::format("write {} {} 0 {} {} {}", connection, own.index, kSize, id, theirs.descriptor.address));
    };
    for (int i = 0; i != 4; ++i) writes.push_back(write());
    EXPECT_TRUE(is_ok(left.wait(writes.front())));
    rails.set_dark(2, true);
    ASSERT_TRUE(is_ok(rails.made()));
    channels("1 of 2 channels", EndpointPlan{}.keepalive + std::chrono::seconds(2) + kMargin);
    for (const std::uint64_t one : writes) EXPECT_TRUE(is_ok(left.wait(one)));
    rails.set_dark(2, false);
    ASSERT_TRUE(is_ok(rails.made()));
    channels("2 channels", std::chrono::seconds(5));
    const std::uint64_t before = rails.carried(2);
    EXPECT_TRUE(is_ok(left.wait(write())));
    EXPECT_GT(rails.carried(2) - before, kSize / 4);
    EXPECT_TRUE(is_ok(status_of(right.call(fmt::format("check {} 0 {} {}", theirs.index, kSize, seed)))));
  }
}

/// Control alone is out of reach, for less than the keepalive time and a little.
TEST_F(RailsTest, ADarkControlPathHarmsNothing) {
  constexpr std::chrono::seconds kKeepalive{6};
  Rails rails(2);
  ASSERT_TRUE(is_ok(rails.made()));
  Joined joined(rails, kKeepalive);
  auto& [left, right, connection, own, theirs, id] = joined;
  left.number(fmt::format("fill {} 0 {} 7", own.index, kSize));
  rails.set_dark(0, true);
  ASSERT_TRUE(is_ok(rails.made()));
  const auto dark = Clock::now() + kKeepalive / 2;
  do {
    EXPECT_TRUE(is_ok(left.wait(left.number(fmt::format("write {} {} 0 {} {} {}", connection, own.index,
                                                        kSize, id, theirs.descriptor.address)))));
  } while (Clock::now() < dark);
  rails.set_dark(0, false);
  ASSERT_TRUE(is_ok(rails.made()));
  const PeerRegion late = right.region(kSize);
  const std::uint64_t late_id = left.number(fmt::format("import {} {}", connection, to_hex(late.descriptor)));
  EXPECT_TRUE(is_ok(left.wait(left.number(fmt::format("write {} {} 0 {} {} {}", connection, own.index, kSize,
                                                      late_id, late.descriptor.address)))));
  for (const auto& region : {theirs, late}) {
    EXPECT_TRUE(is_ok(status_of(right.call(fmt::format("check {} 0 {} 7", region.index, kSize)))));
  }
  // What is said of a region that goes is answered, over whatever connection the session has by now.
  EXPECT_TRUE(is_ok(status_of(right.call(fmt::format("drop_region {}", late.index)))));
  EXPECT_TRUE(is_ok(status_of(left.call(fmt::format("status {}", connection)))));
}

TEST_F(RailsTest, AControlConnectionThatIsForgottenIsDialledAnew) {
  if (!run({"nft", "--version"})) GTEST_SKIP() << "nft (nftables) is not installed";
  constexpr std::chrono::seconds kKeepalive{6};
  Rails rails(2);
  ASSERT_TRUE(is_ok(rails.made()));
  Joined joined(rails, kKeepalive);
  const auto before = rails.control_ports();
  ASSERT_EQ(before.size(), 1U);
  rails.forget(before.front());
  ASSERT_TRUE(is_ok(rails.made()));
  EXPECT_TRUE(eventually([&] {
    const auto now = rails.control_ports();
    return std::ranges::any_of(now, [&](const std::string& port) { return port != before.front(); });
  }));
  EXPECT_TRUE(is_ok(status_of(joined.right.call(fmt::format("drop_region {}", joined.theirs.index)))));
  EXPECT_TRUE(is_ok(status_of(joined.left.call(fmt::format("status {}", joined.connection)))));
  EXPECT_TRUE(is_ok(status_of(joined.right.call("status 0"))));
}

}  // namespace
}  // namespace p2p::testing
