// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a channel does with the frames that come.

#include <algorithm>

#include "base/error.h"
#include "transport/tcp/channel.h"

namespace p2p::tcp {
namespace {

// While more frames keep coming, one acknowledgement covers this many or this much.
constexpr std::uint64_t kFramesPerAcknowledgement = 16;
constexpr std::uint64_t kBytesPerAcknowledgement = 1U << 20;

}  // namespace

Status StreamChannel::begin_frame(const FrameHeader& header, ByteView descriptors, Landing& landing) {
  // Before the acknowledgement that may cover it.
  if (header.type == FrameType::kRefusal) {
    Status status = sender_.refused(header.number, wire_error(header.code, descriptors));
    if (!status) return status;
  }
  if (Status status = sender_.acknowledged(header.acknowledged); !status) return status;
  switch (header.type) {
    case FrameType::kWrite: return begin_write(header, descriptors, landing);
    case FrameType::kReadRequest: return serve_read(header, descriptors);
    case FrameType::kReadResponse: return begin_response(header, landing);
    case FrameType::kReadEnd: return end_read(header, descriptors);
    case FrameType::kAck:
    case FrameType::kRefusal: return {};
  }
  return {};
}

Status StreamChannel::end_frame(const FrameHeader& header, const Landing& landing) {
  if (header.type == FrameType::kReadResponse) {
    if (Read* read = find_read(header.number)) read->landed = true;
  }
  if (header.type != FrameType::kWrite) return {};
  Status status = sender_.write_done(landing.refusal ? tl::unexpected(*landing.refusal) : Status());
  if (!status) return status;
  ++unacknowledged_frames_;
  unacknowledged_bytes_ += header.payload_bytes;
  if (unacknowledged_frames_ < kFramesPerAcknowledgement &&
      unacknowledged_bytes_ < kBytesPerAcknowledgement) {
    return {};
  }
  unacknowledged_frames_ = unacknowledged_bytes_ = 0;
  sender_.want_acknowledgement();
  const Result<bool> flushed = sender_.flush(fd_.get());
  return flushed ? Status() : tl::unexpected(flushed.error());
}

// The ranges as memory of mine; kNotFound, kPermissionDenied or kOutOfRange if one of them may not be used.
Status StreamChannel::resolve(Landing& landing) {
  const Range* range = ranges_.ranges.data();
  for (const RangeGroup& group : ranges_.groups) {
    std::shared_ptr<Registration> registration;
    for (std::size_t i = 0; i != group.count; ++i, ++range) {
      if (!registration || !registration->contains(range->address, range->size)) {
        Result<std::shared_ptr<Registration>> found =
            config_.registrations->find(group.region, group.key, range->address, range->size);
        if (!found) return tl::unexpected(found.error());
        registration = std::move(*found);
      }
      // NOLINTNEXTLINE(performance-no-int-to-ptr): checked against the registration
      landing.pieces.push_back({reinterpret_cast<void*>(range->address), range->size});
    }
    const bool known =
        std::find(landing.guards.begin(), landing.guards.end(), registration) != landing.guards.end();
    if (!known) landing.guards.push_back(std::move(registration));
  }
  return {};
}

Status StreamChannel::begin_write(const FrameHeader& header, ByteView descriptors, Landing& landing) {
  if (header.number != sender_.writes_done() + 1) {
    return fail(ErrorCode::kProtocol, "write {} follows write {}", header.number, sender_.writes_done());
  }
  if (Status status = decode_ranges(descriptors, header.payload_bytes, ranges_); !status) return status;
  if (Status status = resolve(landing); !status) {
    landing.clear();
    landing.refusal = status.error();
  }
  return {};
}

Status StreamChannel::serve_read(const FrameHeader& header, ByteView descriptors) {
  if (sender_.peer_reads() >= kMaxReads) {
    return fail(ErrorCode::kProtocol, "the peer has more than {} reads under way", kMaxReads);
  }
  if (Status status = decode_ranges(descriptors, header.length, ranges_); !status) return status;
  source_.clear();
  const Status resolved = resolve(source_);
  if (!resolved || header.length == 0) {
    sender_.end_read(header.number, resolved);
  } else {
    sender_.respond(header.number, source_.pieces, source_.guards);
  }
  source_.clear();
  return {};
}

StreamChannel::Read* StreamChannel::find_read(std::uint64_t number) {
  const auto found = std::find_if(reads_.begin(), reads_.end(),
                                  [number](const Read& read) { return read.number == number; });
  return found == reads_.end() ? nullptr : &*found;
}

Status StreamChannel::begin_response(const FrameHeader& header, Landing& landing) {
  const Read* read = find_read(header.number);
  if (read == nullptr || read->landed || header.payload_bytes != read->batch.bytes) {
    return fail(ErrorCode::kProtocol, "{} bytes for read {} were not asked for", header.payload_bytes,
                header.number);
  }
  if (read->abandoned) {
    landing.refusal = Error{ErrorCode::kCancelled, "cancelled"};
    return {};
  }
  read->batch.for_each_piece(
      [&landing](const Segment& piece) { landing.pieces.push_back({piece.local, piece.size}); });
  return {};
}

Status StreamChannel::end_read(const FrameHeader& header, ByteView reason) {
  const Read* read = find_read(header.number);
  if (read == nullptr || (header.code == 0 && !read->landed && read->batch.bytes != 0)) {
    return fail(ErrorCode::kProtocol, "read {} ends before its bytes have come", header.number);
  }
  if (!read->abandoned) {
    Status outcome;
    if (header.code != 0) outcome = tl::unexpected(wire_error(header.code, reason));
    completions_.push_back({read->batch.id, std::move(outcome)});
  }
  read_bytes_ -= read->batch.bytes;
  reads_.erase(reads_.begin() + (read - &reads_.front()));
  return {};
}

}  // namespace p2p::tcp
