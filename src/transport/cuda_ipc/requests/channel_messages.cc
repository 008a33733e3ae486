// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/requests/channel_messages.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/underlying.h"

namespace p2p::cuda_ipc {
namespace {

enum MessageKind : std::uint8_t { kOffer = kFirstOwnKind, kWithdrawn, kRing, kLook, kMet };
constexpr std::size_t kMaxExported = 4096;

struct Encoder {
  Bytes operator()(const RegionOffer& offer) const {
    return joined(kOffer, to_underlying(offer.region), offer.base, offer.size, ByteView(offer.exported));
  }
  Bytes operator()(const RegionWithdrawn& withdrawn) const {
    return joined(kWithdrawn, to_underlying(withdrawn.region));
  }
  Bytes operator()(const RingOffer& offer) const {
    return joined(kRing, to_underlying(offer.region), offer.ring, ByteView(offer.token),
                  static_cast<std::uint8_t>(offer.has_words), offer.words);
  }
  Bytes operator()(const Look& /*look*/) const { return joined(kLook); }
  Bytes operator()(const TwinMet& met) const { return joined(kMet, static_cast<std::uint8_t>(met.linked)); }
  Bytes operator()(const CopyRequest& request) const { return p2p::encode(request); }
  Bytes operator()(const CopyOutcome& outcome) const { return p2p::encode(outcome); }

 private:
  template <class... T>
  static Bytes joined(std::uint8_t kind, const T&... values) {
    Bytes bytes;
    ByteWriter out(bytes);
    out.put(kind);
    (out.put(values), ...);
    return bytes;
  }
};

bool read(ByteReader& in, RegionOffer& offer) {
  offer.region = RegionId{in.get<std::uint32_t>()};
  offer.base = in.get<std::uint64_t>();
  offer.size = in.get<std::uint64_t>();
  if (in.left() > kMaxExported) return false;
  const ByteView exported = in.take(in.left());
  offer.exported.assign(exported.begin(), exported.end());
  return offer.size != 0 && offer.base + offer.size > offer.base;
}

bool read(ByteReader& in, RegionWithdrawn& withdrawn) {
  withdrawn.region = RegionId{in.get<std::uint32_t>()};
  return true;
}

bool read(ByteReader& in, RingOffer& offer) {
  offer.region = RegionId{in.get<std::uint32_t>()};
  offer.ring = in.get<std::uint64_t>();
  std::ranges::copy(in.take(offer.token.size()), offer.token.begin());
  const auto has_words = in.get<std::uint8_t>();
  offer.has_words = has_words == 1;
  offer.words = in.get<std::uint8_t>();
  return has_words <= 1;
}

bool read(ByteReader& /*in*/, Look& /*look*/) { return true; }

bool read(ByteReader& in, TwinMet& met) {
  const auto linked = in.get<std::uint8_t>();
  met.linked = linked == 1;
  return linked <= 1;
}

template <class T>
Result<ChannelMessage> read_into(ByteReader& in) {
  T message;
  if (read(in, message) && in.ok() && in.left() == 0) return ChannelMessage(std::move(message));
  return fail(ErrorCode::kProtocol, "a message of a cuda_ipc channel that cannot be read");
}

}  // namespace

Bytes encode(const ChannelMessage& message) { return std::visit(Encoder{}, message); }

Result<ChannelMessage> decode_message(ByteView bytes) {
  ByteReader in(bytes);
  switch (in.get<std::uint8_t>()) {
    case kOffer: return read_into<RegionOffer>(in);
    case kWithdrawn: return read_into<RegionWithdrawn>(in);
    case kRing: return read_into<RingOffer>(in);
    case kLook: return read_into<Look>(in);
    case kMet: return read_into<TwinMet>(in);
    default: break;
  }
  auto copies = decode_copy_message(bytes);
  if (!copies) return tl::unexpected(std::move(copies.error()));
  return std::visit([](const auto& message) { return ChannelMessage(message); }, *copies);
}

}  // namespace p2p::cuda_ipc
