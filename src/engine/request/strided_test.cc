// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/request/strided.h"

#include <gmock/gmock.h>

#include <array>
#include <limits>
#include <random>
#include <vector>

namespace p2p::engine {
namespace {

using ::testing::HasSubstr;

constexpr std::uintptr_t kHere = 0x700000000;
constexpr std::uint64_t kThere = 0x900000000;

Result<StridedList> make(Operation operation, const Strides& local, const Strides& remote,
                         std::uintptr_t here = kHere, std::uint64_t there = kThere) {
  const LocalStrided mine{RegionId{1}, reinterpret_cast<std::byte*>(here), local};
  const RemoteStrided theirs{RemoteRegionId{2}, there, remote};
  return StridedList::make(operation, {&mine, 1}, {&theirs, 1});
}

// Every byte's address, in order.
std::vector<std::uint64_t> bytes_of(std::uint64_t start, const Strides& strides) {
  std::vector<std::uint64_t> bytes;
  for (std::uint64_t row = 0; row != strides.rows; ++row) {
    for (std::uint64_t i = 0; i != strides.count; ++i) {
      const std::uint64_t block = start + row * static_cast<std::uint64_t>(strides.row_stride) +
                                  i * static_cast<std::uint64_t>(strides.stride);
      for (std::uint64_t b = 0; b != strides.block; ++b) bytes.push_back(block + b);
    }
  }
  return bytes;
}

// With `bytes` in all.
Strides random_shape(std::mt19937_64& random, std::uint64_t bytes) {
  const auto divisor = [&](std::uint64_t of) {
    std::uint64_t found = 1 + random() % of;
    while (of % found != 0) --found;
    return found;
  };
  Strides shape{.block = divisor(bytes)};
  shape.count = divisor(bytes / shape.block);
  shape.rows = bytes / shape.block / shape.count;
  const auto signed_stride = [&](std::uint64_t least) {
    const auto stride = static_cast<std::int64_t>(least + random() % 3 * 7);
    return random() % 4 == 0 ? -stride : stride;
  };
  shape.stride = signed_stride(shape.block);
  const auto row = static_cast<std::uint64_t>(shape.stride < 0 ? -shape.stride : shape.stride) * shape.count;
  shape.row_stride = signed_stride(row);
  return shape;
}

TEST(Strided, MovesEachByteOnceAndInOrder) {
  std::mt19937_64 random(41);
  for (int round = 0; round != 2000; ++round) {
    const std::uint64_t bytes = 1 + random() % 720;
    const Strides local = random_shape(random, bytes);
    const Strides remote = random_shape(random, bytes);
    const auto list = make(Operation::kWrite, local, remote);
    ASSERT_TRUE(list) << list.error().message;
    const auto from = bytes_of(kHere, local);
    const auto to = bytes_of(kThere, remote);
    std::size_t at = 0;
    list->pairs[0].for_each_piece([&](const std::byte* data, std::uint64_t address, std::uint64_t size) {
      for (std::uint64_t b = 0; b != size; ++b, ++at) {
        ASSERT_LT(at, from.size());
        ASSERT_EQ(reinterpret_cast<std::uintptr_t>(data) + b, from[at]);
        ASSERT_EQ(address + b, to[at]);
      }
    });
    ASSERT_EQ(at, bytes);
    const auto [low, high] = std::ranges::minmax(from);
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(list->local[0].data), low);
    ASSERT_EQ(list->local[0].size, high - low + 1);
    const auto [first, last] = std::ranges::minmax(to);
    ASSERT_EQ(list->remote[0].address, first);
    ASSERT_EQ(list->remote[0].size, last - first + 1);
  }
}

// However a batch cuts them, within blocks and rows.
TEST(Strided, RepeatsAreTheSamePieces) {
  std::mt19937_64 random(43);
  int described = 0;
  for (int round = 0; round != 4000; ++round) {
    const std::uint64_t bytes = 1 + random() % 720;
    Strides remote = random_shape(random, bytes);
    if (round % 2 == 0) remote = {.block = bytes};
    const Strides local = random_shape(random, bytes);
    const auto list = make(Operation::kWrite, local, remote);
    ASSERT_TRUE(list) << list.error().message;
    const StridedPair& pair = list->pairs[0];
    const auto repeats = pair.repeats();
    if (!repeats) continue;
    ++described;
    const Segment segment{pair.data, pair.address, bytes, nullptr, nullptr, &*repeats};
    const std::uint64_t skip = random() % bytes, taken = 1 + random() % (bytes - skip);
    const Batch batch{BatchId{1}, Operation::kWrite, {&segment, 1}, skip, taken};
    EXPECT_EQ(batch.pieces(), repeats->count * repeats->rows);
    const auto from = bytes_of(kHere, local);
    const auto to = bytes_of(kThere, remote);
    std::uint64_t at = skip;
    batch.for_each_piece([&](const Segment& piece) {
      for (std::uint64_t b = 0; b != piece.size; ++b, ++at) {
        ASSERT_LT(at, skip + taken);
        ASSERT_EQ(reinterpret_cast<std::uintptr_t>(piece.local) + b, from[at]);
        ASSERT_EQ(piece.remote + b, to[at]);
      }
    });
    ASSERT_EQ(at, skip + taken);
  }
  EXPECT_GT(described, 2000);
}

TEST(Strided, JoinsNeighbours) {
  const Strides whole{.block = 4, .count = 8, .stride = 4, .rows = 10, .row_stride = 32};
  const auto list = make(Operation::kRead, whole, {.block = 320});
  ASSERT_TRUE(list);
  int pieces = 0;
  list->pairs[0].for_each_piece([&](std::byte*, std::uint64_t, std::uint64_t) { ++pieces; });
  EXPECT_EQ(pieces, 1);
}

TEST(Strided, OfNothingIsNothing) {
  for (const Strides& none : {Strides{}, Strides{.block = 8, .count = 0}, Strides{.block = 8, .rows = 0}}) {
    const auto list = make(Operation::kWrite, none, Strides{});
    ASSERT_TRUE(list);
    EXPECT_EQ(list->pairs[0].bytes, 0U);
    EXPECT_EQ(list->local[0].size, 0U);
  }
}

TEST(Strided, SourcesMayRepeatAndTargetsMayNot) {
  const Strides repeated{.block = 8, .count = 4, .stride = 0};
  EXPECT_TRUE(make(Operation::kWrite, repeated, {.block = 32}));
  EXPECT_TRUE(make(Operation::kRead, {.block = 32}, repeated));
  for (const auto& list :
       {make(Operation::kRead, repeated, {.block = 32}), make(Operation::kWrite, {.block = 32}, repeated),
        make(Operation::kWrite, {.block = 32}, {.block = 8, .count = 4, .stride = -7}),
        make(Operation::kWrite, {.block = 32}, {.block = 8, .rows = 4, .row_stride = 7}),
        make(Operation::kWrite, {.block = 32},
             {.block = 8, .count = 2, .stride = 16, .rows = 2, .row_stride = 16}),
        make(Operation::kWrite, {.block = 32},
             {.block = 8, .count = 2, .stride = 16, .rows = 2, .row_stride = -12}),
        make(Operation::kWrite, {.block = 64},
             {.block = 8, .count = 4, .stride = -16, .rows = 2, .row_stride = 47})}) {
    ASSERT_FALSE(list);
    EXPECT_EQ(list.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(list.error().message, HasSubstr("overlap"));
  }
}

// As whoever writes down the bytes of each block finds out.
TEST(Strided, TargetsOverlapIfTwoBlocksShareAByte) {
  std::mt19937_64 random(43);
  int overlapping = 0;
  for (int round = 0; round != 3000; ++round) {
    const auto step = [&] { return static_cast<std::int64_t>(random() % 121) - 60; };
    const Strides target{1 + random() % 6, 1 + random() % 6, step(), 1 + random() % 6, step()};
    auto bytes = bytes_of(kThere, target);
    std::ranges::sort(bytes);
    const bool overlaps = std::ranges::adjacent_find(bytes) != bytes.end();
    overlapping += overlaps ? 1 : 0;
    const auto list = make(Operation::kWrite, {.block = bytes.size()}, target);
    ASSERT_EQ(list.has_value(), !overlaps) << target.block << ' ' << target.count << ' ' << target.stride
                                           << ' ' << target.rows << ' ' << target.row_stride;
  }
  EXPECT_GT(overlapping, 500);
  EXPECT_LT(overlapping, 2500);
}

TEST(Strided, RefusesWhatCannotBe) {
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  const std::int64_t far = std::numeric_limits<std::int64_t>::max();
  const std::int64_t down = std::numeric_limits<std::int64_t>::min();
  struct Case {
    Strides remote;
    ErrorCode code;
    const char* text;
  };
  const Case cases[] = {
      {{.block = 32}, ErrorCode::kInvalidArgument, "32 bytes, and 64 at the local side"},
      {{.block = most / 2, .count = 3, .stride = far}, ErrorCode::kOutOfRange, "more bytes than"},
      {{.block = 8, .count = most, .rows = most}, ErrorCode::kOutOfRange, "more bytes than"},
      {{.block = 32, .count = 2, .stride = down}, ErrorCode::kOutOfRange, "beyond the address space"},
      {{.block = 16, .count = 2, .stride = far, .rows = 2, .row_stride = far},
       ErrorCode::kOutOfRange,
       "beyond the address space"},
      {{.block = 16, .count = 4, .stride = far}, ErrorCode::kOutOfRange, "beyond the address space"},
  };
  for (const Case& one : cases) {
    const auto list = make(Operation::kWrite, {.block = 64}, one.remote);
    ASSERT_FALSE(list) << one.text;
    EXPECT_EQ(list.error().code, one.code) << list.error().message;
    EXPECT_THAT(list.error().message, HasSubstr(one.text));
    EXPECT_THAT(list.error().message, HasSubstr("write remote strided memory at 0x900000000"));
  }
  const std::uint64_t many = Strides::kMostBlocks + 1;
  const auto list = make(Operation::kWrite, {.block = 1, .count = many, .stride = 2}, {.block = many});
  ASSERT_FALSE(list);
  EXPECT_THAT(list.error().message, HasSubstr("more than 4194304 blocks"));
  EXPECT_FALSE(make(Operation::kWrite, {.block = 64}, {.block = 64}, most - 10)) << "the end wraps";
}

}  // namespace
}  // namespace p2p::engine
