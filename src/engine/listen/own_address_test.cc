// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/listen/own_address.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "drivers/socket/interfaces.h"

namespace p2p::engine {
namespace {

/// Whether any is told of whichever address of this host a peer came to.
bool tells_any(const Options& options, bool has_key) {
  const auto interfaces = socket::interfaces().value();
  return std::ranges::any_of(interfaces, [&](const socket::Interface& one) {
    return !other_addresses(options, one.address.text(), has_key).empty();
  });
}

TEST(OwnAddress, OthersAreToldOnlyWhereTheyAreOpenAnyway) {
  EXPECT_FALSE(tells_any({}, false)) << "without a key";
  Options named;
  named.listen_address = "127.0.0.1";
  EXPECT_FALSE(tells_any(named, true)) << "the application chose where to listen";
  Options announces;
  announces.announce = "192.0.2.7";
  EXPECT_FALSE(tells_any(announces, true)) << "the application says by what it is reached";
}

TEST(OwnAddress, IsOfTheFamilyThatIsListenedAt) {
  for (const char* everywhere : {"0.0.0.0", "::", "[::]:4000", "::0"}) {
    Options options;
    options.listen_address = everywhere;
    const auto wanted = socket::Address::parse(everywhere, 0);
    const auto own = own_address(options);
    if (!own) continue;  // this host has none of that family, and the error says so
    EXPECT_EQ(socket::Address::parse(*own, 0)->family(), wanted->family()) << everywhere << ": " << *own;
    EXPECT_EQ(listen_addresses(options, *own, false).size(), 1U);
  }
}

TEST(OwnAddress, OfAListenerIsAsPeersDialIt) {
  const auto own_of = [](const char* text) {
    Options options;
    options.listen_address = text;
    return own_address(options);
  };
  EXPECT_EQ(own_of("[::1]:4000").value_or(""), "::1");
  EXPECT_EQ(own_of("::ffff:10.0.0.7").value_or(""), "10.0.0.7");
  for (const char* text : {"localhost", "fe80::1", "10.7", "eth0"}) {
    const auto own = own_of(text);
    ASSERT_FALSE(own) << text;
    EXPECT_NE(own.error().message.find("listen at " + std::string(text)), std::string::npos);
  }
}

TEST(OwnAddress, OthersAreOfThisHost) {
  Options everywhere;
  everywhere.listen_address = "0.0.0.0";
  const auto mine = socket::interfaces().value();
  for (const auto& options : {Options{}, everywhere}) {
    for (const socket::Interface& one : mine) {
      for (const std::string& other : other_addresses(options, one.address.text(), true)) {
        const auto address = socket::Address::parse(other, 0);
        ASSERT_TRUE(address);
        EXPECT_TRUE(socket::is_local(*address) && !address->is_loopback() &&
                    !address->same_host(one.address));
      }
    }
  }
  EXPECT_TRUE(other_addresses({}, "no address", true).empty());
}

}  // namespace
}  // namespace p2p::engine
