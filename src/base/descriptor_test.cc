// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

#include "base/bytes.h"
#include "p2p/memory.h"

namespace p2p {
namespace {

using Serialized = std::array<std::byte, RegionDescriptor::kBytes>;

RegionDescriptor example() {
  RegionDescriptor descriptor;
  descriptor.address = 0x7f0012345678;
  descriptor.size = 0x10000;
  descriptor.place = {MemoryKind::kCuda, 3};
  descriptor.region = RegionId{42};
  for (std::size_t i = 0; i < descriptor.key.size(); ++i) descriptor.key[i] = static_cast<std::byte>(i + 1);
  descriptor.incarnation = 0x1122334455667788;
  return descriptor;
}

template <class T>
T read(const Serialized& bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
void write(Serialized& bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

void expect_same(const RegionDescriptor& left, const RegionDescriptor& right) {
  EXPECT_EQ(left.address, right.address);
  EXPECT_EQ(left.size, right.size);
  EXPECT_EQ(left.place, right.place);
  EXPECT_EQ(left.region, right.region);
  EXPECT_EQ(left.key, right.key);
  EXPECT_EQ(left.incarnation, right.incarnation);
}

TEST(RegionDescriptor, StandsWhereTheHeaderSays) {
  const Serialized bytes = example().serialize();
  EXPECT_EQ(read<std::uint64_t>(bytes, 0), 0x7f0012345678U);
  EXPECT_EQ(read<std::uint32_t>(bytes, 8), 0x10000U);
  EXPECT_EQ(read<std::uint8_t>(bytes, 12), 1);
  EXPECT_EQ(read<std::uint8_t>(bytes, 13), 0);
  EXPECT_EQ(read<std::int16_t>(bytes, 14), 3);
  EXPECT_EQ(read<std::uint32_t>(bytes, 16), 42U);
  EXPECT_EQ(read<std::uint32_t>(bytes, 20), 0U);
  EXPECT_EQ(read<RegionKey>(bytes, 24), example().key);
  EXPECT_EQ(read<std::uint64_t>(bytes, 40), 0x1122334455667788U);
  EXPECT_EQ(read<std::uint64_t>(bytes, 48), 0x10000U);
  EXPECT_EQ(read<std::uint32_t>(bytes, 56), 0U);
  EXPECT_EQ(read<std::uint32_t>(bytes, 60), 0x31503250U);
}

TEST(RegionDescriptor, RoundTrips) {
  RegionDescriptor descriptor = example();
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0xfffffffe}, std::uint64_t{0xffffffff},
        std::uint64_t{0x100000000}, std::numeric_limits<std::uint64_t>::max() - descriptor.address}) {
    for (const MemoryPlace place :
         {MemoryPlace{}, MemoryPlace{MemoryKind::kCuda, 0}, MemoryPlace{MemoryKind::kCuda, 32767}}) {
      descriptor.size = size;
      descriptor.place = place;
      const auto parsed = RegionDescriptor::parse(descriptor.serialize());
      ASSERT_TRUE(parsed) << parsed.error().message;
      expect_same(*parsed, descriptor);
    }
  }
}

TEST(RegionDescriptor, MayBeNarrowedInPlace) {
  for (const std::uint64_t size : {std::uint64_t{1} << 20, std::uint64_t{1} << 40}) {
    RegionDescriptor descriptor = example();
    descriptor.size = size;
    Serialized bytes = descriptor.serialize();
    write(bytes, 0, descriptor.address + 4096);
    write(bytes, 8, std::uint32_t{512});
    const auto parsed = RegionDescriptor::parse(bytes);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->address, descriptor.address + 4096);
    EXPECT_EQ(parsed->size, 512U);
  }
}

TEST(RegionDescriptor, RefusesOtherSizes) {
  const Serialized bytes = example().serialize();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto parsed = RegionDescriptor::parse(ByteView(bytes).first(size));
    ASSERT_FALSE(parsed) << size;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
  }
  Bytes longer(bytes.begin(), bytes.end());
  longer.push_back(std::byte{0});
  EXPECT_FALSE(RegionDescriptor::parse(longer));
}

TEST(RegionDescriptor, RefusesWhatSerializeNeverMakes) {
  const auto refused = [](std::size_t offset, auto value) {
    Serialized bytes = example().serialize();
    write(bytes, offset, value);
    return !RegionDescriptor::parse(bytes);
  };
  EXPECT_TRUE(refused(0, std::numeric_limits<std::uint64_t>::max())) << "range past the end of memory";
  EXPECT_TRUE(refused(12, std::uint8_t{2})) << "unknown kind";
  EXPECT_TRUE(refused(12, std::uint8_t{0})) << "host memory on a device";
  EXPECT_TRUE(refused(13, std::uint8_t{1}));
  EXPECT_TRUE(refused(14, std::int16_t{-1})) << "CUDA memory on no device";
  EXPECT_TRUE(refused(16, std::uint32_t{0})) << "region 0";
  EXPECT_TRUE(refused(20, std::uint32_t{1} << 31));
  EXPECT_TRUE(refused(56, std::uint32_t{1}));
  EXPECT_TRUE(refused(60, std::uint32_t{0}));
  EXPECT_FALSE(refused(24, std::uint64_t{0})) << "any key may be drawn";
}

TEST(RegionDescriptor, RefusesRandomBytes) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 10000; ++round) {
    Serialized bytes;
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    write(bytes, 60, std::uint32_t{0});
    EXPECT_FALSE(RegionDescriptor::parse(bytes));
  }
}

}  // namespace
}  // namespace p2p
