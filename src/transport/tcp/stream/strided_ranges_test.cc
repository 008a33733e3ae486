// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream/strided_ranges.h"

#include <gmock/gmock.h>

#include <array>
#include <limits>
#include <random>

#include "transport/tcp/stream/descriptors.h"

namespace p2p::tcp {
namespace {

using Ranges = std::vector<RemoteRange>;

constexpr std::uint64_t kBase = 0x7f0000000000;

// Of rows of blocks, from block `from` on.
Ranges rows_of(std::uint64_t block, std::int64_t stride, std::uint64_t row, std::int64_t row_stride,
               std::uint64_t from, std::uint64_t count) {
  Ranges ranges;
  for (std::uint64_t i = from; i != from + count; ++i) {
    const auto distance =
        static_cast<std::int64_t>(i / row) * row_stride + static_cast<std::int64_t>(i % row) * stride;
    ranges.push_back({kBase + static_cast<std::uint64_t>(distance), block});
  }
  return ranges;
}

// As a frame has it: with the region and its key.
Bytes encoded_in_frame(const Ranges& ranges) {
  Bytes bytes;
  encode_ranges({ranges, {{.region = RegionId{7}, .count = ranges.size()}}}, bytes);
  return bytes;
}

void expect_short(const Ranges& ranges) {
  ASSERT_TRUE(StridedRanges::of(ranges));
  const Bytes bytes = encoded_in_frame(ranges);
  EXPECT_LE(bytes.size(), 64U);
  std::uint64_t total = 0;
  for (const RemoteRange& range : ranges) total += range.size;
  RangeList back;
  ASSERT_TRUE(decode_ranges(bytes, total, back));
  EXPECT_EQ(back.ranges, ranges);
  EXPECT_FALSE(decode_ranges(bytes, total + 1, back));
  EXPECT_FALSE(decode_ranges(bytes, total - 1, back));
}

TEST(StridedRanges, AreShortWhereverABatchBeginsAndEnds) {
  for (const std::uint64_t row : {2, 3, 5, 64}) {
    for (std::uint64_t from = 0; from != row; ++from) {
      for (const std::uint64_t count : {std::uint64_t{4}, row + 2, 3 * row + 1, std::uint64_t{200}}) {
        SCOPED_TRACE(::testing::Message() << "rows of " << row << ", " << count << " from " << from);
        Ranges ranges = rows_of(132, 264, row, 100000, from, count);
        expect_short(ranges);
        ranges.front() = {ranges.front().address + 131, 1};
        ranges.back().size = 1;
        expect_short(ranges);
      }
    }
  }
}

TEST(StridedRanges, AreShortAtTheirBounds) {
  expect_short(rows_of(576, -576 * 2, 7, -(std::int64_t{1} << 30), 3, 1000));  // downwards
  expect_short(rows_of(10, 1000, 100, 10, 0, 1000));                           // columns
  expect_short(rows_of(65536, std::int64_t{1} << 40, 2, std::int64_t{1} << 45, 1, kMaxRanges));
  expect_short(rows_of(1, 2, kMaxRanges, 0, 0, kMaxRanges));
}

TEST(StridedRanges, AreNoneWhereAnythingDiffers) {
  const Ranges good = rows_of(100, 300, 5, 2000, 2, 40);
  ASSERT_TRUE(StridedRanges::of(good));
  for (std::size_t i = 1; i + 1 != good.size(); ++i) {
    Ranges moved = good;
    ++moved[i].address;
    EXPECT_FALSE(StridedRanges::of(moved)) << i;
    Ranges shorter = good;
    --shorter[i].size;
    EXPECT_FALSE(StridedRanges::of(shorter)) << i;
  }
  EXPECT_FALSE(StridedRanges::of(rows_of(100, 99, 40, 0, 0, 40)));    // blocks overlap
  EXPECT_FALSE(StridedRanges::of(rows_of(100, 0, 40, 0, 0, 40)));     // all of them
  EXPECT_FALSE(StridedRanges::of(rows_of(100, 200, 4, 600, 0, 40)));  // a row begins in the one before
  EXPECT_FALSE(StridedRanges::of(rows_of(100, 300, 5, 2000, 0, 3)));
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  EXPECT_FALSE(StridedRanges::of(Ranges{{most - 7, 2}, {most - 4, 2}, {most - 1, 2}, {1, 2}, {4, 2}}));
}

TEST(StridedRanges, OfRandomShapesComeBack) {
  std::mt19937_64 random(17);
  for (int round = 0; round != 3000; ++round) {
    const std::uint64_t block = 1 + random() % 5000;
    const auto far = [&] { return static_cast<std::int64_t>(block + random() % 10000); };
    const std::int64_t sign = random() % 2 == 0 ? 1 : -1;
    Ranges ranges =
        rows_of(block, sign * far(), 1 + random() % 40, far() * 41, random() % 40, 1 + random() % 500);
    const std::uint64_t skip = random() % block;
    ranges.front().address += skip;
    ranges.front().size -= skip;
    ranges.back().size = 1 + random() % ranges.back().size;
    if (random() % 4 == 0) ranges[random() % ranges.size()].address += random() % 3;
    std::uint64_t total = 0;
    for (const RemoteRange& range : ranges) total += range.size;
    RangeList back;
    ASSERT_TRUE(decode_ranges(encoded_in_frame(ranges), total, back));
    ASSERT_EQ(back.ranges, ranges);
  }
}

struct Field {
  const char* what;
  std::size_t index;
  std::uint64_t value;
};

// Address, block, stride, row, jump, begin, skip, cut.
using Fields = std::array<std::uint64_t, 8>;

Status decode_fields(const Fields& fields, std::uint64_t count, std::uint64_t total) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.put(std::uint32_t{1});
  writer.put(ByteView(RegionKey{}));
  writer.put(std::uint8_t{2});
  writer.put_varint(count);
  writer.put(fields[0]);
  for (std::size_t i = 1; i != fields.size(); ++i) {
    writer.put_varint(i == 2 || i == 4 ? zigzag(fields[i]) : fields[i]);
  }
  RangeList back;
  return decode_ranges(bytes, total, back);
}

TEST(StridedRanges, RefuseWhatNoHonestPeerSends) {
  const Fields good{kBase, 100, 300, 5, 1000, 2, 10, 20};
  const std::uint64_t count = 20;
  const std::uint64_t total = 20 * 100 - 30;
  ASSERT_TRUE(decode_fields(good, count, total));
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  const Field fields[] = {
      {"the last end wraps", 0, most - 5000},
      {"a block of nothing", 1, 0},
      {"a block beyond a frame", 1, kMaxPayloadBytes + 1},
      {"a block beyond memory", 1, most},
      {"the same place again", 2, 0},
      {"overlapping blocks", 2, 99},
      {"overlapping downwards", 2, std::uint64_t{0} - 99},
      {"a stride beyond memory", 2, std::uint64_t{1} << 54},
      {"the farthest stride", 2, std::uint64_t{1} << 63},
      {"rows of nothing", 3, 0},
      {"rows of one", 3, 1},
      {"rows of too many", 3, kMaxRanges + 1},
      {"no way to the next row", 4, 0},
      {"rows that overlap", 4, 50},
      {"a jump beyond memory", 4, most << 60},
      {"a start behind its row", 5, 5},
      {"a start far behind", 5, most},
      {"all of the first block skipped", 6, 100},
      {"all of the last block cut", 7, 100},
  };
  for (const Field& field : fields) {
    Fields bad = good;
    bad[field.index] = field.value;
    const Status status = decode_fields(bad, count, total);
    ASSERT_FALSE(status) << field.what;
    EXPECT_EQ(status.error().code, ErrorCode::kProtocol);
  }
  EXPECT_FALSE(decode_fields(good, 3, 270)) << "too few for this form";
  EXPECT_FALSE(decode_fields(good, kMaxRanges + 1, total)) << "too many of a frame";
  EXPECT_FALSE(decode_fields({kBase, 100, 300, 5, 1000, 0, 0, 0}, 5, 500)) << "a jump of one row";
  EXPECT_FALSE(decode_fields({500, 100, std::uint64_t{0} - 300, 5, 0, 0, 0, 0}, 5, 500)) << "below 0";
  EXPECT_TRUE(decode_fields({1200, 100, std::uint64_t{0} - 300, 5, 0, 0, 0, 0}, 5, 500));
}

}  // namespace
}  // namespace p2p::tcp
