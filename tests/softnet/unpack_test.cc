// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What devices of type UNPACK add; run with SOFTNET_UNPACK=1.
#include "softnet/testing.h"

namespace softnet::testing {
namespace {

struct Exchange {
  std::optional<Arrival> arrival;
  Error error;
};

Exchange exchange(Pair& pair, const Memory& from, const MemoryHandle& source, Memory& to,
                  const MemoryHandle& target, std::size_t size) {
  Exchange result;
  EXPECT_TRUE(*pair.sends->post(from.data, size, source));
  EXPECT_TRUE(*pair.receives->post(to.data, size, target));
  EXPECT_TRUE(until([&] {
    auto sent = pair.sends->poll();
    auto arrival = pair.receives->poll();
    if (!arrival) result.error = arrival.error();
    if (arrival) result.arrival = *arrival;
    return !arrival || (arrival->has_value() && pair.sends->empty()) || (!sent && !arrival);
  }));
  return result;
}

TEST(Unpack, DevicesSayThatTheyUnpack) {
  const auto device = open_plugin()->device(0);
  ASSERT_TRUE(device);
  EXPECT_TRUE(device->properties.unpacks());
  EXPECT_EQ(device->properties.pointer_support, abi::kPointerHost | abi::kPointerCuda);
  EXPECT_EQ(device->properties.max_receives, 1);
}

TEST(Unpack, BytesLieInThePoolAndNotInTheBuffer) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair && pair->unpack);
  Memory from(10000, 4), to(10000);
  const MemoryHandle source = pair->source(from), target = pair->target(to);
  const Exchange done = exchange(*pair, from, source, to, target, 10000);
  ASSERT_TRUE(done.arrival);
  EXPECT_EQ(to.data[0], std::byte{0});
  EXPECT_TRUE(pair->finish(*done.arrival, to.data, 10000));
  EXPECT_EQ(std::memcmp(from.data, to.data, 10000), 0);
}

TEST(Unpack, HostReceivesAreInPlaceAndStillTakeASlot) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair && pair->unpack);
  Memory from(5000, 4), to(5000);
  const MemoryHandle source = pair->source(from), cuda = pair->target(to);
  const auto host = register_with(pair->receives->comm().comm, to.data, to.size, abi::kPointerHost);
  ASSERT_TRUE(host);
  for (std::uint64_t sequence = 0; sequence < 40; ++sequence) {
    std::memset(to.data, 0, to.size);
    const bool scattered = sequence % 3 == 0;
    const Exchange done = exchange(*pair, from, source, to, scattered ? cuda : *host, 5000);
    ASSERT_TRUE(done.arrival);
    ASSERT_EQ(done.arrival->sequence, sequence);
    EXPECT_EQ(done.arrival->entries.empty(), !scattered);
    if (scattered) {
      ASSERT_TRUE(pair->finish(*done.arrival, to.data, 5000));
    } else {
      ASSERT_TRUE(pair->receives->consume());
    }
    ASSERT_EQ(std::memcmp(from.data, to.data, 5000), 0) << sequence;
  }
}

TEST(Unpack, MoreThan2048FragmentsIsAnErrorAndNoOverrun) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair && pair->unpack);
  Memory from((8 << 20) + 4096, 2), to(from.size);
  const MemoryHandle source = pair->source(from), target = pair->target(to);
  const Exchange most = exchange(*pair, from, source, to, target, 8 << 20);
  ASSERT_TRUE(most.arrival);
  EXPECT_LE(most.arrival->entries.size(), 2048u);
  ASSERT_TRUE(pair->finish(*most.arrival, to.data, 8 << 20));
  const Exchange more = exchange(*pair, from, source, to, target, from.size);
  EXPECT_FALSE(more.arrival);
  EXPECT_NE(more.error.message.find("internal error (3)"), std::string::npos) << more.error.message;
}

TEST(Unpack, AllCommsShareOnePool) {
  const auto plugin = open_plugin();
  auto first = Pair::open(plugin), second = Pair::open(plugin);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->receives->comm().unpack->pool, second->receives->comm().unpack->pool);
  EXPECT_NE(first->receives->comm().unpack->lists, second->receives->comm().unpack->lists);
}

TEST(Unpack, APoolThatIsUsedUpHoldsBackOnlyUntilSomethingIsConsumed) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair && pair->unpack);
  // 16 receives of 4 MiB: more than the 32 MiB that this test's environment gives.
  constexpr std::size_t kSize = 4 << 20;
  Memory from(kSize, 2), to(kSize);
  const MemoryHandle source = pair->source(from), target = pair->target(to);
  std::size_t sent = 0, posted = 0, arrived = 0;
  ASSERT_TRUE(until([&] {
    while (sent < 16 && *pair->sends->post(from.data, kSize, source)) ++sent;
    while (posted < 16 && *pair->receives->post(to.data, kSize, target)) ++posted;
    EXPECT_TRUE(pair->sends->poll());
    auto arrival = pair->receives->poll();
    if (arrival && *arrival) {
      EXPECT_TRUE(pair->finish(**arrival, to.data, kSize));
      ++arrived;
    }
    return arrived == 16;
  }));
  EXPECT_EQ(std::memcmp(from.data, to.data, kSize), 0);
}

}  // namespace
}  // namespace softnet::testing
