// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cma/copy_request.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/underlying.h"
#include "base/wire_code.h"
#include "transport/message_listener.h"
#include "transport/registration.h"

namespace p2p::cma {
namespace {

enum MessageKind : std::uint8_t { kRequest = 1, kOutcome };

using Region = CopyRequest::Region;
using Piece = CopyRequest::Piece;

constexpr std::size_t kHeadBytes = 1 + 1 + 8 + 8 + 2;
constexpr std::size_t kMaxText = 400;
static_assert(sizeof(Piece) == 16 && sizeof(Region) == 20, "they travel as they lie in memory");
static_assert(kHeadBytes + kMaxBatchSegments * (sizeof(Region) + sizeof(Piece)) <= kMaxMessageBlockBytes,
              "a request is one block of a ring");

template <class T>
void append(Bytes& bytes, const std::vector<T>& values) {
  const std::size_t before = bytes.size();
  bytes.resize(before + values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data() + before, values.data(), bytes.size() - before);
}

template <class T>
void take(ByteReader& in, std::size_t count, std::vector<T>& values) {
  const ByteView bytes = in.take(count * sizeof(T));
  values.resize(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
}

Bytes encode_request(const CopyRequest& request) {
  Bytes bytes;
  bytes.reserve(kHeadBytes + request.regions.size() * sizeof(Region) + request.pieces.size() * sizeof(Piece));
  ByteWriter out(bytes);
  out.put(std::uint8_t{kRequest});
  out.put(to_underlying(request.operation));
  out.put(request.batch);
  out.put(request.slot);
  out.put(static_cast<std::uint16_t>(request.regions.size()));
  append(bytes, request.regions);
  append(bytes, request.pieces);
  return bytes;
}

Bytes encode_outcome(const CopyOutcome& outcome) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.put(std::uint8_t{kOutcome});
  out.put(outcome.batch);
  out.put(wire_code(outcome.status));
  if (!outcome.status)
    out.put(as_bytes(std::string_view(outcome.status.error().message).substr(0, kMaxText)));
  return bytes;
}

// The sum of at most 1024 sizes of 32 bits does not overflow.
bool is_whole(const CopyRequest& request) {
  std::uint64_t bytes = 0;
  for (const Piece& piece : request.pieces) {
    if (piece.size == 0 || piece.region >= request.regions.size()) return false;
    bytes += piece.size;
  }
  return bytes != 0 && bytes <= kMaxBatchBytes &&
         request.slot <= std::numeric_limits<std::uint64_t>::max() - bytes;
}

bool read(ByteReader& in, CopyRequest& request) {
  const auto operation = in.get<std::uint8_t>();
  request.batch = in.get<std::uint64_t>();
  request.slot = in.get<std::uint64_t>();
  const auto regions = in.get<std::uint16_t>();
  if (!in.ok() || operation > to_underlying(Operation::kRead) || regions > kMaxBatchSegments) return false;
  request.operation = static_cast<Operation>(operation);
  take(in, regions, request.regions);
  if (!in.ok() || in.left() % sizeof(Piece) != 0 || in.left() / sizeof(Piece) > kMaxBatchSegments)
    return false;
  take(in, in.left() / sizeof(Piece), request.pieces);
  return is_whole(request);
}

bool read(ByteReader& in, CopyOutcome& outcome) {
  outcome.batch = in.get<std::uint64_t>();
  const auto code = in.get<std::uint16_t>();
  if (!in.ok() || !is_wire_code(code) || in.left() > kMaxText) return false;
  std::string text = to_string(in.take(in.left()));
  if (code == 0) return text.empty();
  // That one means that the channel is lost, which no message on it can say.
  if (code_from_wire(code) == ErrorCode::kPeerGone) return false;
  // What a peer says goes to people's terminals.
  for (char& character : text) {
    if (static_cast<unsigned char>(character) < 0x20 || character == 0x7f) character = '?';
  }
  outcome.status = fail(code_from_wire(code), "the peer, which copies: {}", text);
  return true;
}

template <class T>
Result<ChannelMessage> read_into(ByteReader& in) {
  T message;
  if (read(in, message)) return ChannelMessage(std::move(message));
  return fail(ErrorCode::kProtocol, "a message of a cma channel that cannot be read");
}

}  // namespace

// A batch has pieces of few regions, which take turns: each is told of once, mostly.
CopyRequest CopyRequest::of(const Batch& batch, const std::byte* slot) {
  CopyRequest request{.batch = to_underlying(batch.id),
                      .operation = batch.operation,
                      .slot = reinterpret_cast<std::uint64_t>(slot),
                      .regions = {},
                      .pieces = {}};
  request.pieces.reserve(batch.segments.size());
  struct Told {
    const RemoteKey* key = nullptr;
    std::uint32_t region = 0;
  };
  std::array<Told, 8> told{};  // the latest
  batch.for_each_piece([&](const Segment& piece) {
    auto* known = std::ranges::find(told, piece.key, &Told::key);
    if (known == told.end()) {
      const auto region = static_cast<std::uint32_t>(request.regions.size());
      known = &told[region % told.size()];
      *known = {piece.key, region};
      request.regions.push_back({piece.key->info().id, piece.key->info().key});
    }
    request.pieces.push_back({piece.remote, static_cast<std::uint32_t>(piece.size), known->region});
  });
  return request;
}

Bytes encode(const ChannelMessage& message) {
  if (const auto* const request = std::get_if<CopyRequest>(&message)) return encode_request(*request);
  return encode_outcome(std::get<CopyOutcome>(message));
}

Result<ChannelMessage> decode_message(ByteView bytes) {
  ByteReader in(bytes);
  switch (in.get<std::uint8_t>()) {
    case kRequest: return read_into<CopyRequest>(in);
    case kOutcome: return read_into<CopyOutcome>(in);
    default:
      return fail(ErrorCode::kProtocol, "a message of {} bytes of a cma channel: of no known kind",
                  bytes.size());
  }
}

}  // namespace p2p::cma
