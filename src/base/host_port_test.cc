// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/host_port.h"

#include <gtest/gtest.h>

#include <string>

namespace p2p {
namespace {

TEST(HostPort, TakesHostsWithAndWithoutPorts) {
  struct Case {
    const char* text;
    const char* host;
    std::optional<std::uint16_t> port;
    bool numeric;
  };
  for (const Case& one :
       {Case{"10.0.0.7", "10.0.0.7", {}, true}, Case{"gpu7.cluster", "gpu7.cluster", {}, false},
        Case{"gpu7:4000", "gpu7", 4000, false}, Case{"fd00::7", "fd00::7", {}, true},
        Case{"[fd00::7]", "fd00::7", {}, true}, Case{"[fd00::7]:65535", "fd00::7", 65535, true},
        Case{"fe80::1%eth0", "fe80::1%eth0", {}, true}, Case{"[fe80::1%eth0]:1", "fe80::1%eth0", 1, true},
        Case{"127.0.0.1:0", "127.0.0.1", 0, true}, Case{"[10.0.0.7]:1", "10.0.0.7", 1, true},
        Case{"::ffff:10.0.0.7", "::ffff:10.0.0.7", {}, true}, Case{"node-1a", "node-1a", {}, false}}) {
    const auto found = HostPort::parse(one.text);
    ASSERT_TRUE(found) << one.text << ": " << found.error().message;
    EXPECT_EQ(found->host, one.host);
    EXPECT_EQ(found->port, one.port);
    EXPECT_EQ(found->is_numeric(), one.numeric) << one.text;
    const auto again = HostPort::parse(found->text());
    ASSERT_TRUE(again) << found->text();
    EXPECT_EQ(again->host, found->host);
    EXPECT_EQ(again->port, found->port);
  }
}

TEST(HostPort, RefusesTheRestAndSaysWhy) {
  const std::string longest(300, 'h');
  for (const char* text :
       {"",           ":4000",        "gpu7:",      "gpu7:65536", "gpu7:4000x", "[fd00::7",   "[fd00::7]4000",
        "[]:4000",    "[fd00::7]:",   "gpu 7",      " 10.0.0.7",  "[[::1]]",    "10.7",       "010.0.0.7",
        "10.0.0.256", "0x7f.0.0.1",   "10.0.0.0x1", "4000",       "fe80::1%",   "fd00::7::1", "10.0.0.1:1:2",
        "a\nb",       longest.c_str()}) {
    const auto found = HostPort::parse(text);
    ASSERT_FALSE(found) << text;
    EXPECT_EQ(found.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(found.error().message.find(": "), std::string::npos);
  }
}

TEST(HostPort, TwoPortsMustAgree) {
  EXPECT_EQ(HostPort::parse("a")->port_or(7), 7);
  EXPECT_EQ(HostPort::parse("a:7")->port_or(7), 7);
  EXPECT_EQ(HostPort::parse("a:7")->port_or(0), 7);
  const auto both = HostPort::parse("a:7")->port_or(8);
  ASSERT_FALSE(both);
  EXPECT_NE(both.error().message.find("port 7, and port 8"), std::string::npos) << both.error().message;
}

}  // namespace
}  // namespace p2p
