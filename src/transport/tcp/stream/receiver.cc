// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream/receiver.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/io_vector.h"
#include "base/safe_copy.h"

namespace p2p::tcp {
namespace {

constexpr std::size_t kStagingBytes = std::size_t{16} << 10;
// A frame with no more payload than this is best taken with one call and copied.
constexpr std::size_t kSmallPayload = std::size_t{8} << 10;
constexpr std::size_t kDiscardBytes = std::size_t{64} << 10;
// Fewer wake-ups for large payloads; below, latency counts for more.
constexpr std::size_t kLowWater = std::size_t{256} << 10;
constexpr std::size_t kLeastLowWater = std::size_t{64} << 10;
// What one call of receive may take before others get their turn.
constexpr std::size_t kReceiveBytes = std::size_t{2} << 20;
constexpr std::size_t kMaxPieces = 1024;  // IOV_MAX

}  // namespace

void Landing::clear() {
  pieces.clear();
  guards.clear();
  refusal.reset();
}

Receiver::Receiver(FrameHandler& handler)
    : handler_(handler), staging_(kStagingBytes), lookahead_(kStagingBytes) {}

Result<Receiver::Received> Receiver::receive(socket::Stream& stream) {
  // With much still to come the low-water mark says when a call is worth it.
  if (low_water_ != 1 && !stream.readable_now()) return Received{};
  Received all{.more = true};
  while (all.more && all.bytes < kReceiveBytes) {
    const Result<Received> some = receive_some(stream);
    if (!some) return some;
    all.bytes += some->bytes;
    all.more = some->more;
  }
  adjust_low_water(stream);
  return all;
}

Result<Receiver::Received> Receiver::receive_some(socket::Stream& stream) {
  Result<Received> received;
  if (payload_left_ == 0) {
    // Among large frames a head alone, so that all behind it lands in place.
    const std::span<std::byte> free = std::span(staging_).subspan(staged_end_);
    const std::size_t least = staged_wanted_ - staged();
    const std::span<std::byte> room = free.first(std::min(free.size(), std::max(lookahead_, least)));
    const Result<socket::Moved> moved = stream.receive_into(room);
    if (!moved) return tl::unexpected(moved.error());
    if (moved->ended) return fail(ErrorCode::kPeerGone, "the peer closed the stream");
    staged_end_ += moved->bytes;
    received = Received{.bytes = moved->bytes, .more = !moved->blocked};
  } else {
    received = landing_.refusal ? receive_discarded(stream) : receive_payload(stream);
    if (!received) return received;
  }
  if (Status status = parse(); !status) return tl::unexpected(status.error());
  return received;
}

// Straight into place, with the next frame's head behind it. Nothing is staged while a payload is awaited.
Result<Receiver::Received> Receiver::receive_payload(socket::Stream& stream) {
  if (!begin_accesses()) return Received{.more = true};
  const std::size_t left = landing_.pieces.size() - next_piece_;
  std::size_t count = std::min(left, kMaxPieces);
  const bool with_staging = left < kMaxPieces;
  if (with_staging) {
    landing_.pieces.push_back({staging_.data(), lookahead_});
    ++count;
  }
  const Result<socket::Moved> moved =
      stream.try_receive(std::span(landing_.pieces).subspan(next_piece_, count));
  accesses_.clear();
  if (with_staging) landing_.pieces.pop_back();
  if (!moved) return tl::unexpected(moved.error());
  if (moved->ended) return fail(ErrorCode::kPeerGone, "the peer closed the stream in the middle of a frame");
  const std::size_t landed = std::min(moved->bytes, payload_left_);
  if (moved->faulted) {
    refuse_bad_memory();
  } else {
    advance_pieces(landed);
  }
  payload_left_ -= landed;
  staged_begin_ = 0;
  staged_end_ = moved->bytes - landed;
  return Received{.bytes = moved->bytes, .more = !moved->blocked};
}

Result<Receiver::Received> Receiver::receive_discarded(socket::Stream& stream) {
  if (discard_.empty()) discard_.resize(kDiscardBytes);
  const std::span<std::byte> room = std::span(discard_).first(std::min(payload_left_, discard_.size()));
  const Result<socket::Moved> moved = stream.receive_into(room);
  if (!moved) return tl::unexpected(moved.error());
  if (moved->ended) return fail(ErrorCode::kPeerGone, "the peer closed the stream in the middle of a frame");
  payload_left_ -= moved->bytes;
  return Received{.bytes = moved->bytes, .more = !moved->blocked};
}

Status Receiver::parse() {
  while (true) {
    if (in_frame_) {
      if (payload_left_ != 0 && staged() != 0) {
        if (Status status = land_staged(); !status) return status;
      }
      if (payload_left_ != 0) return {};
      if (Status status = finish_frame(); !status) return status;
    }
    const Result<bool> begun = parse_header();
    if (!begun) return tl::unexpected(begun.error());
    if (!*begun) break;
  }
  // Room for the rest of a head that has come in part.
  if (staged_begin_ != 0) {
    std::memmove(staging_.data(), staging_.data() + staged_begin_, staged());
    staged_end_ -= staged_begin_;
    staged_begin_ = 0;
  }
  if (staged_wanted_ > staging_.size()) staging_.resize(staged_wanted_);
  return {};
}

// True if a whole head was staged and a frame has begun.
Result<bool> Receiver::parse_header() {
  staged_wanted_ = FrameHeader::kBytes;
  if (staged() < staged_wanted_) return false;
  const std::byte* at = staging_.data() + staged_begin_;
  const Result<FrameHeader> header = FrameHeader::parse({at, FrameHeader::kBytes});
  if (!header) return tl::unexpected(header.error());
  staged_wanted_ = FrameHeader::kBytes + header->descriptor_bytes;
  if (staged() < staged_wanted_) return false;

  header_ = *header;
  landing_.clear();
  next_piece_ = 0;
  const Status status =
      handler_.begin_frame(header_, {at + FrameHeader::kBytes, header_.descriptor_bytes}, landing_);
  if (!status) return tl::unexpected(status.error());
  staged_begin_ += staged_wanted_;
  payload_left_ = header_.payload_bytes;
  in_frame_ = true;
  // Streams of large frames have one like the other; in a stream of small ones any number fits. The end of a
  // read tells nothing of the next one.
  if (header_.type == FrameType::kReadEnd) return true;
  lookahead_ = payload_left_ <= kSmallPayload ? kStagingBytes : std::min(staged_wanted_, kStagingBytes);
  return true;
}

Status Receiver::land_staged() {
  const std::size_t bytes = std::min(staged(), payload_left_);
  const std::byte* from = staging_.data() + staged_begin_;
  staged_begin_ += bytes;
  payload_left_ -= bytes;
  if (landing_.refusal || !begin_accesses()) return {};
  const bool landed = copy_out(std::span(landing_.pieces).subspan(next_piece_), from, bytes) == bytes;
  accesses_.clear();
  if (landed) {
    advance_pieces(bytes);
  } else {
    refuse_bad_memory();
  }
  return {};
}

Status Receiver::finish_frame() {
  in_frame_ = false;
  Status status = handler_.end_frame(header_, landing_);
  landing_.clear();  // lets go of registrations
  return status;
}

bool Receiver::begin_accesses() {
  Status begun = p2p::begin_accesses(landing_.guards, accesses_);
  if (!begun) refuse(std::move(begun.error()));
  return begun.has_value();
}

void Receiver::advance_pieces(std::size_t bytes) {
  next_piece_ += cut_front(std::span(landing_.pieces).subspan(next_piece_), bytes);
}

void Receiver::refuse_bad_memory() {
  refuse(bad_memory("write to", std::span(landing_.pieces).subspan(next_piece_)));
}

void Receiver::refuse(Error why) {
  landing_.clear();
  next_piece_ = 0;
  landing_.refusal = std::move(why);
}

void Receiver::discard_response(std::uint64_t number) {
  const bool landing = in_frame_ && header_.type == FrameType::kReadResponse && header_.number == number;
  if (landing) refuse({ErrorCode::kCancelled, "cancelled"});
}

void Receiver::adjust_low_water(socket::Stream& stream) {
  const std::size_t least = payload_left_ < kLeastLowWater ? 1 : std::min(payload_left_, kLowWater);
  if (least == low_water_) return;
  low_water_ = least;
  stream.set_low_water(low_water_);
}

}  // namespace p2p::tcp
