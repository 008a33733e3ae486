// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/copy_request.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/peer_text.h"
#include "base/underlying.h"
#include "base/wire_code.h"
#include "transport/message_listener.h"
#include "transport/registration.h"

namespace p2p {
namespace {

enum CopyKind : std::uint8_t { kRequest = 1, kOutcome };
static_assert(kOutcome < kFirstOwnKind);

using Region = CopyRequest::Region;
using Piece = CopyRequest::Piece;

constexpr std::size_t kRequestHeadBytes = 1 + 8 + 1 + 1 + 4 + 2;
constexpr std::size_t kMaxReason = 400;
static_assert(sizeof(Piece) == 24 && sizeof(Region) == 20, "they travel as they lie in memory");
static_assert(kRequestHeadBytes + kMaxRequestPieces * (sizeof(Region) + sizeof(Piece)) +
                      sizeof(std::uint64_t) <=
                  kMaxMessageBlockBytes,
              "a request, with a number before it, is one block of a ring");

template <class T>
void append(Bytes& bytes, const std::vector<T>& values) {
  const ByteView view = std::as_bytes(std::span(values));
  bytes.insert(bytes.end(), view.begin(), view.end());
}

template <class T>
void take(ByteReader& in, std::size_t count, std::vector<T>& values) {
  const ByteView bytes = in.take(count * sizeof(T));
  values.resize(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
}

bool read(ByteReader& in, CopyRequest& request) {
  request.batch = in.get<std::uint64_t>();
  const auto operation = in.get<std::uint8_t>();
  const auto last = in.get<std::uint8_t>();
  request.mine = RegionId{in.get<std::uint32_t>()};
  const auto regions = in.get<std::uint16_t>();
  if (!in.ok() || operation > to_underlying(Operation::kRead) || last > 1 || regions > kMaxRequestPieces) {
    return false;
  }
  request.operation = static_cast<Operation>(operation);
  request.last = last == 1;
  take(in, regions, request.regions);
  const std::size_t pieces = in.left() / sizeof(Piece);
  if (!in.ok() || pieces == 0 || pieces > kMaxRequestPieces || in.left() % sizeof(Piece) != 0) return false;
  take(in, pieces, request.pieces);
  return std::ranges::all_of(request.pieces, [&](const Piece& piece) {
    return piece.size != 0 && piece.region < regions &&
           piece.mine <= std::numeric_limits<std::uint64_t>::max() - piece.size;
  });
}

bool read(ByteReader& in, CopyOutcome& outcome) {
  outcome.batch = in.get<std::uint64_t>();
  const auto code = in.get<std::uint16_t>();
  if (!in.ok() || !is_wire_code(code) || in.left() > kMaxReason) return false;
  const PeerText reason(in.take(in.left()));
  if (code == 0) return reason.empty();
  if (code_from_wire(code) == ErrorCode::kPeerGone) return false;
  outcome.status = fail(code_from_wire(code), "the peer, which copies: {}", reason);
  return true;
}

template <class T>
Result<CopyMessage> read_into(ByteReader& in) {
  T message;
  if (read(in, message)) return CopyMessage(std::move(message));
  return fail(ErrorCode::kProtocol, "a message about copies that cannot be read");
}

}  // namespace

Bytes encode(const CopyRequest& request) {
  Bytes bytes;
  bytes.reserve(kRequestHeadBytes + request.regions.size() * sizeof(Region) +
                request.pieces.size() * sizeof(Piece));
  ByteWriter out(bytes);
  out.put(std::uint8_t{kRequest});
  out.put(request.batch);
  out.put(to_underlying(request.operation));
  out.put(static_cast<std::uint8_t>(request.last));
  out.put(to_underlying(request.mine));
  out.put(static_cast<std::uint16_t>(request.regions.size()));
  append(bytes, request.regions);
  append(bytes, request.pieces);
  return bytes;
}

Bytes encode(const CopyOutcome& outcome) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.put(std::uint8_t{kOutcome});
  out.put(outcome.batch);
  if (outcome.status) {
    out.put(wire_code(outcome.status));
  } else {
    const ErrorCode code = outcome.status.error().code;
    out.put(wire_code(code == ErrorCode::kPeerGone ? ErrorCode::kUnavailable : code));
    out.put(as_bytes(std::string_view(outcome.status.error().message).substr(0, kMaxReason)));
  }
  return bytes;
}

Result<CopyMessage> decode_copy_message(ByteView bytes) {
  ByteReader in(bytes);
  switch (in.get<std::uint8_t>()) {
    case kRequest: return read_into<CopyRequest>(in);
    case kOutcome: return read_into<CopyOutcome>(in);
    default:
      return fail(ErrorCode::kProtocol, "a message of {} bytes between channels: of no known kind",
                  bytes.size());
  }
}

// A batch has pieces of few regions, which take turns: each is listed once, mostly.
void RequestList::add(const RemoteKey& key, std::uint64_t theirs, RegionId mine, std::uint64_t local,
                      std::uint64_t size) {
  const bool fits = !requests_.empty() && requests_.back().mine == mine &&
                    requests_.back().pieces.size() != kMaxRequestPieces;
  if (!fits) {
    if (!requests_.empty()) requests_.back().last = false;
    requests_.push_back(
        {.batch = batch_, .operation = operation_, .last = true, .mine = mine, .regions = {}, .pieces = {}});
    listed_ = {};
  }
  CopyRequest& request = requests_.back();
  auto* listed = std::ranges::find(listed_, &key, &Listed::key);
  if (listed == listed_.end()) {
    const auto region = static_cast<std::uint32_t>(request.regions.size());
    listed = &listed_[region % listed_.size()];
    *listed = {&key, region};
    request.regions.push_back({key.info().id, key.info().key});
  }
  request.pieces.push_back({theirs, local, static_cast<std::uint32_t>(size), listed->region});
}

}  // namespace p2p
