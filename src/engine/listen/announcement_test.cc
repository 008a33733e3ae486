// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/listen/announcement.h"

#include <gtest/gtest.h>

namespace p2p::engine {
namespace {

TEST(Announcement, TakesHostsWithAndWithoutPorts) {
  struct Case {
    const char* text;
    const char* host;
    std::uint16_t port;
  };
  for (const Case& one :
       {Case{"10.0.0.7", "10.0.0.7", 0}, Case{"gpu7.cluster", "gpu7.cluster", 0},
        Case{"gpu7:4000", "gpu7", 4000}, Case{"fd00::7", "fd00::7", 0}, Case{"[fd00::7]", "fd00::7", 0},
        Case{"[fd00::7]:65535", "fd00::7", 65535}, Case{"fe80::1%eth0", "fe80::1%eth0", 0}}) {
    const auto found = Announcement::parse(one.text);
    ASSERT_TRUE(found) << one.text;
    EXPECT_EQ(found->host, one.host);
    EXPECT_EQ(found->port, one.port);
  }
}

TEST(Announcement, RefusesTheRest) {
  for (const char* text : {"", ":4000", "gpu7:", "gpu7:0", "gpu7:65536", "gpu7:4000x", "[fd00::7",
                           "[fd00::7]4000", "[]:4000", "[fd00::7]:", "gpu 7", "[[::1]]"}) {
    const auto found = Announcement::parse(text);
    ASSERT_FALSE(found) << text;
    EXPECT_EQ(found.error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace p2p::engine
