// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/rdma/address.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <initializer_list>

#include "transport/rdma/region.h"

namespace p2p::rdma {
namespace {

using verbs::Gid;
using verbs::GidKind;

constexpr std::array<std::byte, 32> kSecret{std::byte{1}};

Gid gid(GidKind kind, std::initializer_list<unsigned> bytes, unsigned index = 0) {
  Gid gid{.index = index, .kind = kind};
  std::ranges::transform(bytes, gid.bytes.begin(),
                         [](unsigned byte) { return static_cast<std::byte>(byte); });
  return gid;
}

Gid ipv4(GidKind kind, std::array<unsigned, 4> host, unsigned index = 0) {
  return gid(kind, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, host[0], host[1], host[2], host[3]}, index);
}

Gid link_local(GidKind kind, unsigned host, unsigned index = 0) {
  return gid(kind, {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host}, index);
}

Address example() {
  return {.role = Role::kAcceptor,
          .generation = 3,
          .device = 2,
          .ethernet = true,
          .mtu = 4096,
          .lid = 7,
          .reads = 16,
          .number = 0x1234,
          .sequence = 0xabcdef,
          .gids = {link_local(GidKind::kRoceV1, 1, 0), ipv4(GidKind::kRoceV2, {10, 0, 0, 1}, 1)}};
}

TEST(RdmaAddress, ComesBackAsItWas) {
  const Address in = example();
  const auto out = Address::parse(in.serialize(kSecret), kSecret);
  ASSERT_TRUE(out) << out.error().message;
  EXPECT_EQ(out->role, in.role);
  EXPECT_EQ(out->generation, in.generation);
  EXPECT_EQ(out->device, in.device);
  EXPECT_EQ(out->mtu, in.mtu);
  EXPECT_EQ(out->lid, in.lid);
  EXPECT_EQ(out->reads, in.reads);
  EXPECT_EQ(out->number, in.number);
  EXPECT_EQ(out->sequence, in.sequence);
  ASSERT_EQ(out->gids.size(), 2U);
  EXPECT_EQ(out->gids[1].bytes, in.gids[1].bytes);
  EXPECT_EQ(out->gids[1].kind, GidKind::kRoceV2);
}

TEST(RdmaAddress, EveryOtherLengthIsRefused) {
  Bytes bytes = example().serialize(kSecret);
  const std::size_t size = bytes.size();
  for (std::size_t length = 0; length <= size + 1; ++length) {
    if (length == size) continue;
    Bytes other = bytes;
    other.resize(length);
    const auto parsed = Address::parse(other, kSecret);
    ASSERT_FALSE(parsed) << length;
    EXPECT_EQ(parsed.error().code, ErrorCode::kProtocol);
  }
}

TEST(RdmaAddress, EveryChangedBitIsNoticed) {
  const Bytes bytes = example().serialize(kSecret);
  for (std::size_t i = 0; i < 8 * bytes.size(); ++i) {
    Bytes other = bytes;
    other[i / 8] ^= static_cast<std::byte>(1 << i % 8);
    EXPECT_FALSE(Address::parse(other, kSecret)) << "bit " << i;
  }
}

TEST(RdmaAddress, AnotherSessionsIsRefused) {
  std::array<std::byte, 32> other = kSecret;
  other[31] = std::byte{9};
  const auto parsed = Address::parse(example().serialize(other), kSecret);
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, ErrorCode::kPermissionDenied);
}

TEST(RdmaGids, NewerRoceBeforeTheSameSubnet) {
  const std::array mine{ipv4(GidKind::kRoceV1, {10, 0, 0, 1}, 0), ipv4(GidKind::kRoceV2, {10, 0, 0, 1}, 1)};
  const std::array theirs{ipv4(GidKind::kRoceV1, {10, 0, 0, 2}, 4), ipv4(GidKind::kRoceV2, {10, 9, 0, 2}, 5)};
  const auto chosen = choose_gids(mine, theirs);
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->connector->index, 1U);
  EXPECT_EQ(chosen->acceptor->index, 5U);
}

TEST(RdmaGids, SameSubnetAmongEquals) {
  const std::array mine{ipv4(GidKind::kRoceV2, {10, 1, 0, 1}, 3), ipv4(GidKind::kRoceV2, {10, 2, 0, 1}, 5)};
  const std::array theirs{ipv4(GidKind::kRoceV2, {10, 2, 0, 7}, 1), ipv4(GidKind::kRoceV2, {10, 3, 0, 7}, 2)};
  const auto chosen = choose_gids(mine, theirs);
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->connector->index, 5U);
  EXPECT_EQ(chosen->acceptor->index, 1U);
}

TEST(RdmaGids, Ipv4BeforeLinkLocal) {
  const std::array mine{link_local(GidKind::kRoceV2, 1, 0), ipv4(GidKind::kRoceV2, {10, 1, 0, 1}, 1)};
  const std::array theirs{link_local(GidKind::kRoceV2, 1, 0), ipv4(GidKind::kRoceV2, {192, 1, 0, 1}, 1)};
  EXPECT_EQ(choose_gids(mine, theirs)->connector->index, 1U);
}

TEST(RdmaGids, NothingInCommonIsAnError) {
  const std::array mine{ipv4(GidKind::kRoceV1, {10, 0, 0, 1})};
  const std::array theirs{ipv4(GidKind::kRoceV2, {10, 0, 0, 2}), link_local(GidKind::kRoceV1, 3)};
  const auto chosen = choose_gids(mine, theirs);
  ASSERT_FALSE(chosen);
  EXPECT_EQ(chosen.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(choose_gids({}, theirs));
}

TEST(RdmaKeyTest, TakesOneKeyADeviceAndNothingElse) {
  const RegionInfo info{
      .id = RegionId{1}, .base = reinterpret_cast<std::byte*>(0x1000), .size = 4096, .place = {}};
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.put(std::uint8_t{2});
  writer.put(std::uint32_t{11});
  writer.put(std::uint32_t{22});
  const auto key = RdmaKey::parse(info, bytes);
  ASSERT_TRUE(key) << key.error().message;
  EXPECT_EQ((*key)->remote_key(1), 22U);
  EXPECT_TRUE((*key)->has(1));
  EXPECT_FALSE((*key)->has(2));
  for (std::size_t length = 0; length <= bytes.size() + 1; ++length) {
    if (length == bytes.size()) continue;
    Bytes other = bytes;
    other.resize(length);
    EXPECT_FALSE(RdmaKey::parse(info, other)) << length;
  }
  EXPECT_FALSE(RdmaKey::parse(info, Bytes(1))) << "no key at all";
}

}  // namespace
}  // namespace p2p::rdma
