// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/request/stripe.h"

#include <gmock/gmock.h>

#include <random>
#include <vector>

namespace p2p::engine {
namespace {

std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

TEST(Stripe, MergesOnlyWhatContinuesOnBothSides) {
  std::vector<Segment> list;
  append_merged(list, {at(1000), 5000, 100, nullptr, nullptr});
  append_merged(list, {at(1100), 5100, 50, nullptr, nullptr});  // continues both
  append_merged(list, {at(1150), 6000, 50, nullptr, nullptr});  // continues the local side only
  append_merged(list, {at(2000), 6050, 50, nullptr, nullptr});  // continues the remote side only
  append_merged(list, {at(2050), 6100, 0, nullptr, nullptr});   // nothing
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(list[0].size, 150U);
  EXPECT_EQ(list[1].local, at(1150));
  EXPECT_EQ(list[2].remote, 6050U);
}

// However a list is cut, the items cover each byte once, in order, within the limits.
TEST(Stripe, CutsCoverTheListExactly) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<Segment> list;
    std::uint64_t total = 0;
    std::uintptr_t address = 1 << 20;
    for (std::size_t n = 1 + random() % 40; n != 0; --n) {
      const std::uint64_t size = 1 + random() % 5000;
      list.push_back({at(address), address * 2, size, nullptr, nullptr});
      address += size + 1 + random() % 100;
      total += size;
    }
    const BatchLimits limits{1 + random() % 8000, 1 + random() % 10};
    Batch rest{BatchId{1}, Operation::kWrite, list, 0, total};
    std::uint64_t covered = 0;
    std::size_t segment = 0;
    std::uint64_t offset = 0;
    while (!rest.segments.empty()) {
      const Batch cut = cut_batch(rest, limits);
      ASSERT_GT(cut.bytes, 0U);
      ASSERT_LE(cut.bytes, limits.bytes);
      ASSERT_LE(cut.segments.size(), limits.segments);
      std::uint64_t seen = 0;
      cut.for_each_piece([&](const Segment& item) {
        ASSERT_EQ(item.local, list[segment].local + offset);
        ASSERT_EQ(item.remote, list[segment].remote + offset);
        offset += item.size;
        seen += item.size;
        ASSERT_LE(offset, list[segment].size);
        if (offset == list[segment].size) {
          ++segment;
          offset = 0;
        }
      });
      ASSERT_EQ(seen, cut.bytes);
      covered += seen;
    }
    ASSERT_EQ(covered, total);
    ASSERT_EQ(rest.bytes, 0U);
    ASSERT_EQ(cut_batch(rest, limits).bytes, 0U);
  }
}

TEST(Stripe, PairsSpanBySpanWhereCountsAgree) {
  const std::vector<LocalSpan> message{{RegionId{1}, at(100), 10}, {RegionId{1}, at(200), 20}};
  const std::vector<RemoteSpan> receive{{RemoteRegionId{1}, 1000, 16}, {RemoteRegionId{2}, 2000, 20}};
  const auto pairing = pair_message(message, receive);
  ASSERT_TRUE(pairing);
  ASSERT_EQ(pairing->remote.size(), 2U);
  EXPECT_EQ(pairing->remote[0].size, 10U);
  EXPECT_EQ(pairing->remote[1].address, 2000U);

  const std::vector<RemoteSpan> small{{RemoteRegionId{1}, 1000, 5}, {RemoteRegionId{2}, 2000, 200}};
  const auto refused = pair_message(message, small);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kMessageTooLong);
}

TEST(Stripe, PairsAsAStreamOtherwise) {
  const std::vector<LocalSpan> message{{RegionId{1}, at(100), 10}, {RegionId{1}, at(200), 20}};
  const std::vector<RemoteSpan> receive{
      {RemoteRegionId{1}, 1000, 4}, {RemoteRegionId{1}, 1500, 0}, {RemoteRegionId{2}, 2000, 100}};
  const auto pairing = pair_message(message, receive);
  ASSERT_TRUE(pairing);
  ASSERT_EQ(pairing->local.size(), 3U);
  EXPECT_EQ(pairing->local[1].data, at(104));
  EXPECT_EQ(pairing->remote[1].address, 2000U);
  EXPECT_EQ(pairing->remote[2].address, 2006U);

  const std::vector<RemoteSpan> small{{RemoteRegionId{1}, 1000, 29}};
  ASSERT_FALSE(pair_message(message, small));
  EXPECT_EQ(pair_message(message, small).error().code, ErrorCode::kMessageTooLong);
  EXPECT_TRUE(pair_message({}, small));
}

}  // namespace
}  // namespace p2p::engine
