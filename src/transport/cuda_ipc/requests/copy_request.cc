// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/requests/copy_request.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/underlying.h"

namespace p2p::cuda_ipc {
namespace {

enum WordKind : std::uint8_t { kOffer = 1, kWithdrawn, kRequest, kOutcome, kRing, kLook, kMet };
constexpr std::size_t kMaxExported = 4096;
constexpr std::size_t kMaxText = 400;
constexpr std::uint16_t kGood = 0xffff;
static_assert(sizeof(CopyRequest::Piece) == 24, "it travels as it lies in memory");

struct Writer {
  ByteWriter& out;

  void operator()(const RegionOffer& offer) const {
    out.put(std::uint8_t{kOffer});
    out.put(to_underlying(offer.region));
    out.put(offer.base);
    out.put(offer.size);
    out.put(ByteView(offer.exported));
  }

  void operator()(const RegionWithdrawn& withdrawn) const {
    out.put(std::uint8_t{kWithdrawn});
    out.put(to_underlying(withdrawn.region));
  }

  void operator()(const RingOffer& offer) const {
    out.put(std::uint8_t{kRing});
    out.put(to_underlying(offer.region));
    out.put(offer.ring);
    out.put(ByteView(offer.token));
    out.put(static_cast<std::uint8_t>(offer.has_words));
    out.put(offer.words);
  }

  void operator()(const Look& /*look*/) const { out.put(std::uint8_t{kLook}); }

  void operator()(const TwinMet& met) const {
    out.put(std::uint8_t{kMet});
    out.put(static_cast<std::uint8_t>(met.linked));
  }

  void operator()(const CopyRequest& request) const {
    out.put(std::uint8_t{kRequest});
    out.put(request.batch);
    out.put(static_cast<std::uint8_t>(request.operation));
    out.put(static_cast<std::uint8_t>(request.last));
    out.put(to_underlying(request.theirs));
    out.put(ByteView(request.key));
    out.put(to_underlying(request.mine));
  }

  void operator()(const CopyOutcome& outcome) const {
    out.put(std::uint8_t{kOutcome});
    out.put(outcome.batch);
    out.put(outcome.status ? kGood : static_cast<std::uint16_t>(outcome.status.error().code));
    if (outcome.status) return;
    out.put(as_bytes(std::string_view(outcome.status.error().message).substr(0, kMaxText)));
  }
};

bool read(ByteReader& in, RegionOffer& offer) {
  offer.region = RegionId{in.get<std::uint32_t>()};
  offer.base = in.get<std::uint64_t>();
  offer.size = in.get<std::uint64_t>();
  if (in.left() > kMaxExported) return false;
  const ByteView exported = in.take(in.left());
  offer.exported.assign(exported.begin(), exported.end());
  return in.ok() && offer.size != 0 && offer.base + offer.size > offer.base;
}

bool read(ByteReader& in, RingOffer& offer) {
  offer.region = RegionId{in.get<std::uint32_t>()};
  offer.ring = in.get<std::uint64_t>();
  std::ranges::copy(in.take(offer.token.size()), offer.token.begin());
  const auto has_words = in.get<std::uint8_t>();
  offer.has_words = has_words == 1;
  offer.words = in.get<std::uint8_t>();
  return in.ok() && in.left() == 0 && has_words <= 1;
}

bool read(ByteReader& in, Look& /*look*/) { return in.left() == 0; }

bool read(ByteReader& in, TwinMet& met) {
  const auto linked = in.get<std::uint8_t>();
  met.linked = linked == 1;
  return in.ok() && in.left() == 0 && linked <= 1;
}

bool read(ByteReader& in, CopyRequest& request) {
  request.batch = in.get<std::uint64_t>();
  const auto operation = in.get<std::uint8_t>();
  const auto last = in.get<std::uint8_t>();
  request.theirs = RegionId{in.get<std::uint32_t>()};
  const ByteView key = in.take(request.key.size());
  std::ranges::copy(key, request.key.begin());
  request.mine = RegionId{in.get<std::uint32_t>()};
  constexpr std::size_t kPiece = sizeof(CopyRequest::Piece);
  if (!in.ok() || operation > 1 || last > 1 || in.left() % kPiece != 0 || in.left() / kPiece > kMaxPieces) {
    return false;
  }
  request.operation = static_cast<Operation>(operation);
  request.last = last == 1;
  request.pieces.resize(in.left() / kPiece);
  const ByteView pieces = in.take(in.left());
  if (!pieces.empty()) std::memcpy(request.pieces.data(), pieces.data(), pieces.size());
  return std::ranges::none_of(request.pieces, [](const auto& piece) { return piece.size == 0; });
}

bool read(ByteReader& in, CopyOutcome& outcome) {
  outcome.batch = in.get<std::uint64_t>();
  const auto code = in.get<std::uint16_t>();
  if (!in.ok() || in.left() > kMaxText) return false;
  if (code == kGood) return in.left() == 0;
  if (code > static_cast<std::uint16_t>(ErrorCode::kSystem)) return false;
  outcome.status = fail(static_cast<ErrorCode>(code), "the peer, which copies its private memory: {}",
                        to_string(in.take(in.left())));
  return true;
}

template <class T>
bool read_into(ByteReader& in, ChannelMessage& message) {
  T value;
  if (!read(in, value)) return false;
  message = std::move(value);
  return true;
}

}  // namespace

Bytes encode(const ChannelMessage& message) {
  Bytes bytes;
  ByteWriter out(bytes);
  std::visit(Writer{out}, message);
  // Thousands of pieces: at once.
  if (const auto* const request = std::get_if<CopyRequest>(&message)) {
    const std::size_t head = bytes.size();
    bytes.resize(head + request->pieces.size() * sizeof(CopyRequest::Piece));
    if (!request->pieces.empty()) {
      std::memcpy(bytes.data() + head, request->pieces.data(), bytes.size() - head);
    }
  }
  return bytes;
}

Result<ChannelMessage> decode_message(ByteView bytes) {
  ByteReader in(bytes);
  const auto kind = in.get<std::uint8_t>();
  ChannelMessage message;
  bool good = false;
  if (kind == kOffer) good = read_into<RegionOffer>(in, message);
  if (kind == kRequest) good = read_into<CopyRequest>(in, message);
  if (kind == kRing) good = read_into<RingOffer>(in, message);
  if (kind == kLook) good = read_into<Look>(in, message);
  if (kind == kMet) good = read_into<TwinMet>(in, message);
  if (kind == kOutcome) good = read_into<CopyOutcome>(in, message);
  if (kind == kWithdrawn) {
    message = RegionWithdrawn{RegionId{in.get<std::uint32_t>()}};
    good = in.ok() && in.left() == 0;
  }
  if (good) return message;
  return fail(ErrorCode::kProtocol, "a message of a cuda_ipc channel that cannot be read ({} bytes)",
              bytes.size());
}

}  // namespace p2p::cuda_ipc
