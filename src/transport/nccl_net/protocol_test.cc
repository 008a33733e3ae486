// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/protocol.h"

#include <gtest/gtest.h>

#include <random>

namespace p2p::nccl_net {
namespace {

std::vector<RegionRange> some_ranges(std::size_t count) {
  std::vector<RegionRange> ranges;
  for (std::size_t index = 0; index < count; ++index) {
    RegionRange range{.region = RegionId{static_cast<std::uint32_t>(index / 3)},
                      .address = index << 40,
                      .size = index % 500};
    range.key.fill(static_cast<std::byte>(index / 3));
    ranges.push_back(range);
  }
  return ranges;
}

Chunk some_chunk(std::size_t count) {
  Chunk chunk{.sequence = 7, .batch = 9, .last = true, .ranges = some_ranges(count)};
  for (const RegionRange& range : chunk.ranges) chunk.size += range.size;
  return chunk;
}

TEST(Protocol, ChunksComeBack) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{5}, kMaxRanges}) {
    const Chunk sent = some_chunk(count);
    const Bytes bytes = encode(sent);
    EXPECT_LE(bytes.size(), std::size_t{64} << 10) << "a control message's limit";
    const auto message = decode(bytes);
    ASSERT_TRUE(message) << message.error().message;
    const Chunk& got = std::get<Chunk>(*message);
    EXPECT_EQ(got.sequence, sent.sequence);
    EXPECT_EQ(got.batch, sent.batch);
    EXPECT_EQ(got.last, sent.last);
    EXPECT_FALSE(got.response);
    EXPECT_EQ(got.size, sent.size);
    ASSERT_EQ(got.ranges.size(), sent.ranges.size());
    for (std::size_t index = 0; index < count; ++index) {
      EXPECT_EQ(got.ranges[index].region, sent.ranges[index].region);
      EXPECT_EQ(got.ranges[index].key, sent.ranges[index].key);
      EXPECT_EQ(got.ranges[index].address, sent.ranges[index].address);
      EXPECT_EQ(got.ranges[index].size, sent.ranges[index].size);
    }
  }
}

TEST(Protocol, EveryOtherMessageComesBack) {
  EXPECT_EQ(std::get<ReadRequest>(*decode(encode(ReadRequest{3, some_ranges(10)}))).ranges.size(), 10U);
  const auto done = decode(encode(Done{4, true, tl::unexpected(Error{ErrorCode::kNotFound, "why"})}));
  ASSERT_TRUE(done);
  EXPECT_EQ(std::get<Done>(*done).batch, 4U);
  EXPECT_TRUE(std::get<Done>(*done).response);
  EXPECT_EQ(std::get<Done>(*done).status.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(std::get<Done>(*done).status.error().message, "why");
  EXPECT_TRUE(std::get<Done>(*decode(encode(Done{4, false, {}}))).status);
  EXPECT_TRUE(std::get<Cancel>(*decode(encode(Cancel{5, true}))).response);
  EXPECT_TRUE(std::holds_alternative<Ping>(*decode(encode(Ping{}))));
}

TEST(Protocol, MessagesTravelTogether) {
  Bytes packed;
  EXPECT_TRUE(unpack(packed)->empty());
  pack(packed, Ping{});
  pack(packed, some_chunk(3));
  pack(packed, Cancel{5, true});
  const auto messages = unpack(packed);
  ASSERT_TRUE(messages) << messages.error().message;
  ASSERT_EQ(messages->size(), 3U);
  EXPECT_TRUE(std::holds_alternative<Ping>((*messages)[0]));
  EXPECT_EQ(std::get<Chunk>((*messages)[1]).ranges.size(), 3U);
  EXPECT_EQ(std::get<Cancel>((*messages)[2]).batch, 5U);
  for (std::size_t cut = 1; cut < 10; ++cut) {
    EXPECT_FALSE(unpack(ByteView(packed).first(packed.size() - cut))) << "without its last " << cut;
  }
}

TEST(Protocol, RefusesWhatDoesNotAddUp) {
  Chunk chunk = some_chunk(4);
  chunk.size += 1;
  EXPECT_FALSE(decode(encode(chunk))) << "ranges that are shorter than the chunk";
  chunk = some_chunk(1);
  chunk.size = chunk.ranges[0].size = kMaxChunkBytes + 1;
  EXPECT_FALSE(decode(encode(chunk))) << "a chunk that is too long";
  chunk = some_chunk(2);
  chunk.ranges[0].size = ~std::uint64_t{0};
  chunk.ranges[1].size = 2;
  chunk.size = 1;
  EXPECT_FALSE(decode(encode(chunk))) << "a sum that wraps around";
  EXPECT_FALSE(decode(encode(some_chunk(kMaxRanges + 1)))) << "too many ranges";
  chunk = some_chunk(2);
  chunk.response = true;
  EXPECT_FALSE(decode(encode(chunk))) << "an answer that names places";
  EXPECT_FALSE(decode({}));
  EXPECT_FALSE(decode(as_bytes("\x09")));
}

TEST(Protocol, SurvivesAnyBytes) {
  const Bytes good = encode(some_chunk(20));
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(decode(ByteView(good).first(size))) << size << " bytes";
  }
  std::mt19937 random(3);
  std::size_t refused = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = good;
    bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    refused += decode(bytes) ? 0U : 1U;
    Bytes noise(random() % 60);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random() % 7);
    refused += decode(noise) ? 0U : 1U;
  }
  EXPECT_GT(refused, 0U);
}

}  // namespace
}  // namespace p2p::nccl_net
