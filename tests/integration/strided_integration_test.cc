// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "support/peer.h"
#include "support/transports.h"

namespace p2p::testing::strided {
namespace {

constexpr std::size_t kSize = std::size_t{1} << 20;

class StridedTest : public OverTransport {
 protected:
  StridedTest() : pair_(plan_over(GetParam())) {
    const auto id = pair_.connection.import_region(theirs_.descriptor);
    EXPECT_TRUE(is_ok(status_of(id)));
    if (id) remote_ = *id;
  }

  LocalStrided here(std::size_t offset, const Strides& strides) const {
    return {own_.region.id(), own_.region.data() + offset, strides};
  }
  RemoteStrided there(std::size_t offset, const Strides& strides) const {
    return {remote_, theirs_.descriptor.address + offset, strides};
  }
  Transfer write(const LocalStrided& from, const RemoteStrided& to) {
    return pair_.connection.write(std::span(&from, 1), std::span(&to, 1));
  }
  Transfer read(const LocalStrided& into, const RemoteStrided& from) {
    return pair_.connection.read(std::span(&into, 1), std::span(&from, 1));
  }

  // All of the peer's memory.
  std::vector<std::byte> their_bytes() {
    const RemoteSpan all{remote_, theirs_.descriptor.address, kSize};
    EXPECT_TRUE(is_ok(pair_.connection.read(copy_.span(0, kSize), all).wait(kLimit)));
    const auto bytes = copy_.part(0, kSize);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::byte> own_bytes() const {
    const auto bytes = own_.part(0, kSize);
    return {bytes.begin(), bytes.end()};
  }

  Pair pair_;
  OwnRegion own_{pair_.endpoint, kSize};
  OwnRegion copy_{pair_.endpoint, kSize};
  PeerRegion theirs_ = pair_.peer.region(kSize);
  RemoteRegionId remote_{};
};
P2P_OVER_TRANSPORTS_AND_TLS(StridedTest);

// What a transfer is to do, byte by byte.
void copy(std::vector<std::byte>& to, std::size_t at, const Strides& target,
          const std::vector<std::byte>& from, std::size_t start, const Strides& source) {
  const auto place = [](std::size_t first, const Strides& shape, std::uint64_t byte) {
    const std::uint64_t block = byte / shape.block;
    return first + block / shape.count * static_cast<std::uint64_t>(shape.row_stride) +
           block % shape.count * static_cast<std::uint64_t>(shape.stride) + byte % shape.block;
  };
  const std::uint64_t bytes = source.block * source.count * source.rows;
  for (std::uint64_t b = 0; b != bytes; ++b) to[place(at, target, b)] = from[place(start, source, b)];
}

struct Placed {
  std::size_t offset = 0;
  Strides strides{};
};

// Of so many bytes, somewhere in a region; rows of blocks, upwards or downwards, or whole.
Placed random_shape(std::mt19937_64& random, std::uint64_t bytes) {
  const auto divisor = [&](std::uint64_t of) {
    std::uint64_t found = 1 + random() % of;
    while (of % found != 0) --found;
    return found;
  };
  Strides shape{.block = random() % 5 == 0 ? bytes : divisor(bytes)};
  shape.count = divisor(bytes / shape.block);
  shape.rows = bytes / shape.block / shape.count;
  const std::uint64_t stride = shape.block + random() % 2 * (random() % 200);
  const std::uint64_t row_stride = stride * shape.count + random() % 2 * (random() % 3000);
  const bool down = random() % 4 == 0;
  const bool rows_down = random() % 4 == 0;
  const std::uint64_t extent = row_stride * shape.rows;
  if (extent > kSize) return random_shape(random, bytes);
  std::size_t offset = random() % (kSize - extent + 1);
  if (down) offset += stride * (shape.count - 1);
  if (rows_down) offset += row_stride * (shape.rows - 1);
  shape.stride = down ? -static_cast<std::int64_t>(stride) : static_cast<std::int64_t>(stride);
  shape.row_stride =
      rows_down ? -static_cast<std::int64_t>(row_stride) : static_cast<std::int64_t>(row_stride);
  return {offset, shape};
}

TEST_P(StridedTest, RandomShapesLandAsTheyShouldAndGapsStay) {
  std::mt19937_64 random(411);
  for (int round = 0; round != 12; ++round) {
    SCOPED_TRACE(round);
    const std::uint64_t bytes = 1 + random() % (round % 3 == 0 ? 100 : 200000);
    const Placed mine = random_shape(random, bytes);
    const Placed their = random_shape(random, bytes);
    fill(own_.pages.bytes(), random());
    auto expected = their_bytes();
    copy(expected, their.offset, their.strides, own_bytes(), mine.offset, mine.strides);
    ASSERT_TRUE(
        is_ok(write(here(mine.offset, mine.strides), there(their.offset, their.strides)).wait(kLimit)));
    ASSERT_TRUE(their_bytes() == expected);

    fill(own_.pages.bytes(), random());
    auto wanted = own_bytes();
    copy(wanted, mine.offset, mine.strides, expected, their.offset, their.strides);
    ASSERT_TRUE(
        is_ok(read(here(mine.offset, mine.strides), there(their.offset, their.strides)).wait(kLimit)));
    ASSERT_TRUE(own_bytes() == wanted);
  }
}

TEST_P(StridedTest, PreparedOnesArePostedAgain) {
  const Strides columns{.block = 132, .count = 40, .stride = 300, .rows = 20, .row_stride = 20000};
  const Strides packed{.block = 132 * 800};
  const std::vector from{here(7, columns), here(1001, {.block = 10})};
  const std::vector to{there(0, packed), there(900000, {.block = 1, .count = 10, .stride = 3})};
  const auto prepared = pair_.connection.prepare_write(from, to);
  ASSERT_TRUE(is_ok(status_of(prepared)));
  EXPECT_EQ(prepared->bytes(), 132U * 800 + 10);
  for (const std::uint64_t seed : {1, 2}) {
    fill(own_.pages.bytes(), seed);
    auto expected = their_bytes();
    copy(expected, 0, packed, own_bytes(), 7, columns);
    copy(expected, 900000, to[1].strides, own_bytes(), 1001, from[1].strides);
    const Transfer transfer = prepared->post();
    ASSERT_TRUE(is_ok(transfer.wait(kLimit)));
    EXPECT_EQ(transfer.bytes(), 132U * 800 + 10);
    ASSERT_TRUE(their_bytes() == expected);
  }
}

TEST_P(StridedTest, ErrorsNameWhatReachesOut) {
  const Strides rows{.block = 100, .count = 100, .stride = 200};
  fill(own_.pages.bytes(), 5);
  const auto before = their_bytes();
  const auto refused = [&](const Transfer& transfer, ErrorCode code, const char* text) {
    const Status status = transfer.wait(kLimit);
    EXPECT_TRUE(is_error(status, {code}));
    if (!status) {
      EXPECT_THAT(status.error().message, ::testing::HasSubstr(text));
    }
  };
  refused(write(here(kSize - 19899, rows), there(0, rows)), ErrorCode::kOutOfRange, "local region");
  refused(write(here(0, rows), there(kSize - 19899, rows)), ErrorCode::kOutOfRange, "region");
  refused(write(here(0, rows), there(0, {.block = 100, .count = 100, .stride = -200})),
          ErrorCode::kOutOfRange, "region");
  refused(write(here(0, rows), there(0, {.block = 100})), ErrorCode::kInvalidArgument,
          "100 bytes, and 10000");
  refused(read(here(0, {.block = 100, .count = 100, .stride = 99}), there(0, rows)),
          ErrorCode::kInvalidArgument, "overlap");
  EXPECT_TRUE(is_ok(write(here(0, {}), there(0, {})).wait(kLimit)));
  EXPECT_TRUE(their_bytes() == before);
  EXPECT_TRUE(is_ok(write(here(kSize - 19900, rows), there(kSize - 19900, rows)).wait(kLimit)));
  EXPECT_FALSE(their_bytes() == before);
}

// Many blocks of nothing take nothing, beside what is something.
TEST_P(StridedTest, BlocksOfNoBytesCountForNothing) {
  fill(own_.pages.bytes(), 6);
  auto expected = their_bytes();
  copy(expected, 100, {.block = 50}, own_bytes(), 0, {.block = 50});
  const Strides many{.count = std::uint64_t{1} << 60, .stride = 8};
  const Strides none{.block = 8, .count = 0, .rows = std::uint64_t{1} << 60};
  const std::vector from{here(0, many), here(0, none), here(0, {.block = 50})};
  const std::vector to{there(0, none), there(0, many), there(100, {.block = 50})};
  EXPECT_TRUE(is_ok(pair_.connection.write(from, to).wait(kLimit)));
  EXPECT_TRUE(their_bytes() == expected);
}

}  // namespace
}  // namespace p2p::testing::strided
