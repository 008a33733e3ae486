// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream/descriptors.h"

#include <gmock/gmock.h>

#include <limits>
#include <memory>
#include <random>

#include "base/wire_code.h"
#include "transport/registration.h"
#include "transport/tcp/stream/frame.h"

namespace p2p::tcp {
namespace {

using ::testing::ElementsAreArray;

RangeList one_group(std::vector<RemoteRange> ranges, std::uint32_t region = 7) {
  RangeList list;
  RangeGroup group{.region = static_cast<RegionId>(region), .count = ranges.size()};
  group.key.fill(std::byte{0x5a});
  list.groups.push_back(group);
  list.ranges = std::move(ranges);
  return list;
}

std::uint64_t total(const RangeList& list) {
  std::uint64_t bytes = 0;
  for (const RemoteRange& range : list.ranges) bytes += range.size;
  return bytes;
}

Bytes encoded(const RangeList& list) {
  Bytes bytes;
  encode_ranges(list, bytes);
  return bytes;
}

void expect_round_trip(const RangeList& list) {
  const Bytes bytes = encoded(list);
  EXPECT_LE(bytes.size(), kMaxDescriptorBytes);
  RangeList back;
  ASSERT_TRUE(decode_ranges(bytes, total(list), back));
  EXPECT_THAT(back.ranges, ElementsAreArray(list.ranges));
  ASSERT_EQ(back.groups.size(), list.groups.size());
  for (std::size_t i = 0; i != list.groups.size(); ++i) {
    EXPECT_EQ(back.groups[i].region, list.groups[i].region);
    EXPECT_EQ(back.groups[i].key, list.groups[i].key);
    EXPECT_EQ(back.groups[i].count, list.groups[i].count);
  }
  EXPECT_FALSE(decode_ranges(bytes, total(list) + 1, back));
  EXPECT_FALSE(decode_ranges(bytes, total(list) - 1, back));
}

TEST(Descriptors, KeepSingleRanges) {
  expect_round_trip(one_group({{0, 1}}));
  expect_round_trip(one_group({{0x7f1234567890, 1 << 20}}));
  expect_round_trip(one_group({{std::numeric_limits<std::uint64_t>::max() - 5, 5}}));
  // Out of any region's range, which is for the owner to say.
  expect_round_trip(one_group({{std::numeric_limits<std::uint64_t>::max(), 2}, {0x1000, 2}}));
}

TEST(Descriptors, KeepShuffledPagesInFourBytesEach) {
  std::vector<RemoteRange> ranges;
  for (std::uint64_t i = 0; i != 256; ++i) ranges.push_back({0x7f0000001000 + ((i * 37) % 256) * 8192, 4096});
  const RangeList list = one_group(ranges);
  expect_round_trip(list);
  EXPECT_LT(encoded(list).size(), 256 * 4 + 40U);
}

TEST(Descriptors, PreferListsWhereTheyAreShorter) {
  std::vector<RemoteRange> ranges;
  for (std::uint64_t i = 0; i != 100; ++i) ranges.push_back({0x7f0000000000 + i * 20, 10 + i % 3});
  const RangeList list = one_group(ranges);
  expect_round_trip(list);
  EXPECT_LT(encoded(list).size(), 100 * 2 + 40U);
}

TEST(Descriptors, KeepRandomListsOfManyGroups) {
  std::mt19937_64 random(11);
  for (int round = 0; round != 200; ++round) {
    RangeList list;
    const std::size_t groups = 1 + random() % 5;
    for (std::size_t g = 0; g != groups; ++g) {
      RangeGroup group{.region = static_cast<RegionId>(random()), .count = 1 + random() % 200};
      const std::uint64_t size = 1 + random() % 5000;
      for (auto& byte : group.key) byte = static_cast<std::byte>(random());
      for (std::size_t i = 0; i != group.count; ++i) {
        const bool paged = g % 2 == 0;
        list.ranges.push_back(paged ? RemoteRange{0x10000 + (random() % 1000) * size, size}
                                    : RemoteRange{random() >> (1 + random() % 40), 1 + random() % 60000});
      }
      list.groups.push_back(group);
    }
    expect_round_trip(list);
  }
}

TEST(Descriptors, FitTheirBoundAtWorst) {
  RangeList list;
  for (std::size_t i = 0; i != kMaxRanges; ++i) {
    list.groups.push_back({.region = static_cast<RegionId>(i), .count = 1});
    list.ranges.push_back({i % 2 == 0 ? std::uint64_t{1} << 63 : 0, 65536});
  }
  expect_round_trip(list);
}

TEST(Descriptors, RefuseWhatNoHonestPeerSends) {
  RangeList back;
  EXPECT_TRUE(decode_ranges({}, 0, back));
  EXPECT_FALSE(decode_ranges({}, 1, back));

  const auto refuse = [&](auto build) {
    Bytes bytes;
    ByteWriter writer(bytes);
    writer.put(std::uint32_t{1});
    writer.put(ByteView(RegionKey{}));
    build(writer);
    const Status status = decode_ranges(bytes, 4096, back);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kProtocol);
  };
  const auto paged = [](ByteWriter& writer, std::uint64_t count, std::uint64_t base, std::uint64_t size,
                        std::uint32_t index) {
    writer.put(std::uint8_t{1});
    writer.put_varint(count);
    writer.put(base);
    writer.put_varint(size);
    writer.put(index);
  };
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  refuse([&](ByteWriter& writer) { paged(writer, 1, 0, 0, 0); });              // empty block
  refuse([&](ByteWriter& writer) { paged(writer, 0, 0, 4096, 0); });           // no block
  refuse([&](ByteWriter& writer) { paged(writer, 2, 0, 4096, 0); });           // truncated
  refuse([&](ByteWriter& writer) { paged(writer, most, 0, 4096, 0); });        // absurd count
  refuse([&](ByteWriter& writer) { paged(writer, 1, 0, most, 0xffffffff); });  // wraps in the product
  refuse([&](ByteWriter& writer) {                                             // unknown encoding
    writer.put(std::uint8_t{3});
    writer.put_varint(1);
  });
}

TEST(Descriptors, SurviveRandomBytes) {
  std::mt19937_64 random(5);
  RangeList back;
  const Bytes good = encoded(one_group({{1000, 50}, {2000, 70}, {9000, 8}}));
  for (int round = 0; round != 20000; ++round) {
    Bytes bytes = good;
    for (std::size_t flips = 1 + random() % 4; flips != 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    bytes.resize(random() % (bytes.size() + 1));
    const Status status = decode_ranges(bytes, 128, back);
    EXPECT_TRUE(!status || total(back) == 128U);
  }
}

TEST(Descriptors, MergeWhatIsContiguousOverThere) {
  const RemoteKey first({.id = RegionId{1}});
  const RemoteKey second({.id = RegionId{2}});
  std::array<std::byte, 64> local{};
  const std::vector<Segment> segments{{&local[40], 100, 10, nullptr, &first},
                                      {&local[0], 110, 10, nullptr, &first},
                                      {&local[20], 120, 10, nullptr, &second},
                                      {&local[10], 500, 10, nullptr, &second}};
  RangeList list;
  collect_ranges({.segments = segments, .skip = 3, .bytes = 30}, list);
  EXPECT_THAT(list.ranges,
              ::testing::ElementsAre(RemoteRange{103, 17}, RemoteRange{120, 10}, RemoteRange{500, 3}));
  ASSERT_EQ(list.groups.size(), 2U);
  EXPECT_EQ(list.groups[0].count, 1U);
  EXPECT_EQ(list.groups[1].count, 2U);
}

TEST(FrameHeader, ComesBackAndRefusesNonsense) {
  const FrameHeader header{.type = FrameType::kWrite,
                           .descriptor_bytes = 30,
                           .payload_bytes = 4096,
                           .number = 5,
                           .acknowledged = 4};
  std::array<std::byte, FrameHeader::kBytes> bytes{};
  header.write_to(bytes.data());
  const Result<FrameHeader> back = FrameHeader::parse(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->number, 5U);
  EXPECT_EQ(back->payload_bytes, 4096U);

  std::mt19937_64 random(3);
  for (int round = 0; round != 20000; ++round) {
    auto changed = bytes;
    for (int flips = 0; flips != 3; ++flips) changed[random() % 24] = static_cast<std::byte>(random());
    if (const Result<FrameHeader> parsed = FrameHeader::parse(changed)) {
      EXPECT_LE(parsed->payload_bytes, kMaxPayloadBytes);
      EXPECT_LE(parsed->descriptor_bytes, kMaxDescriptorBytes);
      EXPECT_LE(parsed->length, kMaxPayloadBytes);
    }
  }
}

TEST(FrameHeader, ErrorsKeepTheirCode) {
  const Error error = wire_error(wire_code(ErrorCode::kOutOfRange), as_bytes("bad\x1b[31m range"));
  EXPECT_EQ(error.code, ErrorCode::kOutOfRange);
  EXPECT_EQ(error.message.find('\x1b'), std::string::npos);
  EXPECT_EQ(wire_error(0xffff, {}).code, ErrorCode::kProtocol);
  EXPECT_EQ(wire_error(wire_code(ErrorCode::kPeerGone), {}).code, ErrorCode::kProtocol);
}

}  // namespace
}  // namespace p2p::tcp
