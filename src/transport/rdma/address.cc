// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/rdma/address.h"

#include <algorithm>
#include <bit>
#include <tuple>

#include "base/error.h"
#include "base/underlying.h"
#include "drivers/crypto/mutual_proof.h"

namespace p2p::rdma {
namespace {

constexpr std::string_view kUse = "p2p rdma channel";
constexpr std::uint8_t kVersion = 1;
constexpr std::uint32_t k24Bits = (1U << 24) - 1;

bool is_link_local(const verbs::Gid& gid) {
  return gid.bytes[0] == std::byte{0xfe} && (gid.bytes[1] & std::byte{0xc0}) == std::byte{0x80};
}

unsigned common_bits(const verbs::Gid& left, const verbs::Gid& right) {
  for (unsigned i = 0; i < left.bytes.size(); ++i) {
    const auto differing = std::to_integer<std::uint8_t>(left.bytes[i] ^ right.bytes[i]);
    if (differing != 0) return 8 * i + static_cast<unsigned>(std::countl_zero(differing));
  }
  return 128;
}

}  // namespace

Bytes Address::serialize(std::span<const std::byte> secret) const {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.put(kVersion);
  writer.put(static_cast<std::uint8_t>(role));
  writer.put(generation);
  writer.put(device);
  writer.put(static_cast<std::uint8_t>(ethernet ? 1 : 0));
  writer.put(mtu);
  writer.put(lid);
  writer.put(reads);
  writer.put(number);
  writer.put(sequence);
  const std::size_t count = std::min(gids.size(), kMaxGids);
  writer.put(static_cast<std::uint8_t>(count));
  for (const verbs::Gid& gid : std::span(gids).first(count)) {
    writer.put(static_cast<std::uint8_t>(gid.kind));
    writer.put(ByteView(gid.bytes));
  }
  writer.put(ByteView(crypto::MutualProof(kUse, secret).bind(bytes).by(role)));
  return bytes;
}

Result<Address> Address::parse(ByteView bytes, std::span<const std::byte> secret) {
  const auto malformed = [] {
    return fail(ErrorCode::kProtocol, "connect with rdma: the peer's channel address is malformed");
  };
  ByteReader reader(bytes);
  Address address;
  const auto version = reader.get<std::uint8_t>();
  const auto role = reader.get<std::uint8_t>();
  address.generation = reader.get<std::uint32_t>();
  address.device = reader.get<std::uint8_t>();
  const auto ethernet = reader.get<std::uint8_t>();
  address.mtu = reader.get<std::uint16_t>();
  address.lid = reader.get<std::uint16_t>();
  address.reads = reader.get<std::uint8_t>();
  address.number = reader.get<std::uint32_t>();
  address.sequence = reader.get<std::uint32_t>();
  const auto count = reader.get<std::uint8_t>();
  if (!reader.ok() || version != kVersion || role > 1 || ethernet > 1 || count > kMaxGids ||
      !std::has_single_bit(address.mtu) || address.mtu < 256 || address.mtu > 4096 ||
      address.number > k24Bits || address.sequence > k24Bits) {
    return malformed();
  }
  address.role = Role{role};
  address.ethernet = ethernet == 1;
  for (unsigned i = 0; i < count; ++i) {
    verbs::Gid gid{.index = i};
    const auto kind = reader.get<std::uint8_t>();
    const ByteView raw = reader.take(gid.bytes.size());
    if (!reader.ok() || kind > to_underlying(verbs::GidKind::kRoceV2)) return malformed();
    gid.kind = verbs::GidKind{kind};
    std::ranges::copy(raw, gid.bytes.begin());
    address.gids.push_back(gid);
  }
  const ByteView body = bytes.first(bytes.size() - reader.left());
  const ByteView proof = reader.take(sizeof(crypto::Digest));
  if (!reader.ok() || reader.left() != 0) return malformed();
  if (!crypto::MutualProof(kUse, secret).bind(body).holds(address.role, proof)) {
    return fail(ErrorCode::kPermissionDenied,
                "connect with rdma: the peer does not know the session's secret");
  }
  return address;
}

Result<GidPair> choose_gids(std::span<const verbs::Gid> connector, std::span<const verbs::Gid> acceptor) {
  GidPair best;
  std::tuple<unsigned, unsigned, unsigned> best_score;
  for (const verbs::Gid& mine : connector) {
    for (const verbs::Gid& theirs : acceptor) {
      const bool alike = mine.kind == theirs.kind && mine.is_ipv4() == theirs.is_ipv4() &&
                         is_link_local(mine) == is_link_local(theirs);
      if (!alike) continue;
      const unsigned family = mine.is_ipv4() ? 2 : is_link_local(mine) ? 0 : 1;
      const std::tuple score{static_cast<unsigned>(to_underlying(mine.kind)), family,
                             common_bits(mine, theirs)};
      if (best.connector != nullptr && score <= best_score) continue;
      best = {&mine, &theirs};
      best_score = score;
    }
  }
  if (best.connector == nullptr) {
    return fail(ErrorCode::kUnavailable,
                "connect with rdma: of {} and {} GIDs no two are of one kind and family", connector.size(),
                acceptor.size());
  }
  return best;
}

}  // namespace p2p::rdma
