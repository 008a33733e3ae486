// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "conn_info.h"

#include <gtest/gtest.h>

#include <string>

namespace p2p::nixl {
namespace {

constexpr Incarnation kIncarnation = 0x0123456789abcdef;

std::string blob_of(const std::string& address) {
  const auto blob = ConnInfo{address, 4001, kIncarnation}.encode();
  EXPECT_TRUE(blob) << blob.error().message;
  return blob.value_or("");
}

TEST(ConnInfo, ComesBackAsItWas) {
  for (const char* address :
       {"127.0.0.1", "10.1.2.3", "::1", "2001:db8::17", "fe80::1%eth0", "localhost", "gpu7.example",
        "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255%fifteen-letters"}) {
    const std::string blob = blob_of(address);
    EXPECT_EQ(blob.size(), ConnInfo::kBytes);
    const auto info = ConnInfo::decode(blob);
    ASSERT_TRUE(info) << info.error().message;
    EXPECT_EQ(*info, (ConnInfo{address, 4001, kIncarnation}));
  }
}

TEST(ConnInfo, OnlyHostsCanBeAnnounced) {
  for (const char* address : {"", "10.0.0", "::1%", "1.2.3.4%eth0", "/tmp/x"}) {
    EXPECT_FALSE((ConnInfo{address, 4001, kIncarnation}.encode())) << address;
  }
  EXPECT_FALSE((ConnInfo{"::1%" + std::string(64, 'x'), 4001, kIncarnation}.encode()));
  const auto longer = ConnInfo{std::string(60, 'x') + ".here", 4001, kIncarnation}.encode();
  ASSERT_FALSE(longer);
  EXPECT_NE(longer.error().message.find("room for 64 bytes"), std::string::npos) << longer.error().message;
  EXPECT_FALSE((ConnInfo{"127.0.0.1", 0, kIncarnation}.encode()));
}

TEST(ConnInfo, AnyChangedBitIsNoticed) {
  const std::string blob = blob_of("192.168.10.20");
  for (std::size_t bit = 0; bit < 8 * blob.size(); ++bit) {
    std::string damaged = blob;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(ConnInfo::decode(damaged)) << "bit " << bit;
  }
}

TEST(ConnInfo, AnyOtherLengthIsRefused) {
  const std::string blob = blob_of("192.168.10.20");
  for (std::size_t length = 0; length < blob.size(); ++length) {
    EXPECT_FALSE(ConnInfo::decode(std::string_view(blob).substr(0, length)));
  }
  EXPECT_FALSE(ConnInfo::decode(blob + '\0'));
}

}  // namespace
}  // namespace p2p::nixl
