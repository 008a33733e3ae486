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
    if (Read* read = find_read(header.number)) {
      read->landed = true;
      if (read->slot != nullptr && !landing.refusal) {
        read->outcome = device_.unpack_answer(*read->slot, read->batch);
      }
    }
  }
  if (header.type != FrameType::kWrite) return {};
  Status outcome = landing.refusal ? tl::unexpected(*landing.refusal) : Status();
  if (arrival_) {
    device_.landed(arrival_->slot, std::move(arrival_->memory), std::move(outcome), header.payload_bytes);
    arrival_.reset();
    return {};
  }
  if (device_.landing() == 0) return write_ended(outcome, header.payload_bytes);
  device_.landed(nullptr, {}, std::move(outcome), header.payload_bytes);
  return {};
}

// Of writes that reached a device, and those that came behind them.
Status StreamChannel::settle_writes() {
  while (const auto landed = device_.next_landed()) {
    if (Status status = write_ended(landed->outcome, landed->bytes); !status) return status;
  }
  return {};
}

bool StreamChannel::settle_reads() {
  bool moved = false;
  for (std::size_t i = 0; i < reads_.size();) {
    Read& read = reads_[i];
    if (read.slot == nullptr || !read.ended || !device_.answer_unpacked(*read.slot)) {
      ++i;
      continue;
    }
    if (read.outcome) read.outcome = read.slot->status();
    device_.drop_answer(*read.slot);
    if (!read.abandoned) completions_.push_back({read.batch.id, std::move(read.outcome)});
    read_bytes_ -= read.batch.bytes;
    reads_.erase(reads_.begin() + static_cast<std::ptrdiff_t>(i));
    moved = true;
  }
  return moved;
}

Status StreamChannel::write_ended(const Status& outcome, std::uint64_t bytes) {
  Status status = sender_.write_done(outcome);
  if (!status) return status;
  ++unacknowledged_frames_;
  unacknowledged_bytes_ += bytes;
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
  places_.clear();
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
    places_.push_back(registration->info().place);
    if (!known) landing.guards.push_back(std::move(registration));
  }
  return {};
}

bool StreamChannel::resolved_to_device() const {
  return std::any_of(places_.begin(), places_.end(),
                     [](const MemoryPlace& place) { return place.kind == MemoryKind::kCuda; });
}

// What `resolve` found, to go through a slot.
StagedMemory StreamChannel::stage(Landing& landing) const {
  StagedMemory memory;
  const iovec* piece = landing.pieces.data();
  for (std::size_t group = 0; group != ranges_.groups.size(); ++group) {
    for (std::size_t i = 0; i != ranges_.groups[group].count; ++i, ++piece) {
      memory.add(static_cast<std::byte*>(piece->iov_base), piece->iov_len, places_[group]);
    }
  }
  memory.guards = std::move(landing.guards);
  landing.clear();
  return memory;
}

Status StreamChannel::begin_write(const FrameHeader& header, ByteView descriptors, Landing& landing) {
  const std::uint64_t before = sender_.writes_done() + device_.landing();
  if (header.number != before + 1) {
    return fail(ErrorCode::kProtocol, "write {} follows write {}", header.number, before);
  }
  if (Status status = decode_ranges(descriptors, header.payload_bytes, ranges_); !status) return status;
  if (Status status = resolve(landing); !status) {
    landing.clear();
    landing.refusal = status.error();
    return {};
  }
  if (!resolved_to_device()) return {};
  StagedMemory memory = stage(landing);
  const auto slot = device_.slot_for_arrival(memory.bytes);
  if (!slot) {
    landing.refusal = slot.error();
    return {};
  }
  landing.pieces.push_back({(*slot)->data(), memory.bytes});
  arrival_ = Arrival{*slot, std::move(memory)};
  return {};
}

Status StreamChannel::serve_read(const FrameHeader& header, ByteView descriptors) {
  if (sender_.peer_reads() + device_.responses() >= kMaxReads) {
    return fail(ErrorCode::kProtocol, "the peer has more than {} reads under way", kMaxReads);
  }
  if (Status status = decode_ranges(descriptors, header.length, ranges_); !status) return status;
  source_.clear();
  const Status resolved = resolve(source_);
  if (!resolved || header.length == 0) {
    sender_.end_read(header.number, resolved);
  } else if (resolved_to_device()) {
    device_.respond(header.number, stage(source_));
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
  if (read->slot != nullptr) {
    landing.pieces.push_back({read->slot->data(), read->batch.bytes});
    return {};
  }
  read->batch.for_each_piece(
      [&landing](const Segment& piece) { landing.pieces.push_back({piece.local, piece.size}); });
  return {};
}

Status StreamChannel::end_read(const FrameHeader& header, ByteView reason) {
  Read* const read = find_read(header.number);
  if (read == nullptr || read->ended || (header.code == 0 && !read->landed && read->batch.bytes != 0)) {
    return fail(ErrorCode::kProtocol, "read {} ends before its bytes have come", header.number);
  }
  Status outcome;
  if (header.code != 0) outcome = tl::unexpected(wire_error(header.code, reason));
  if (read->slot != nullptr) {
    read->ended = true;
    if (read->outcome) read->outcome = std::move(outcome);
    return {};
  }
  if (!read->abandoned) {
    completions_.push_back({read->batch.id, std::move(outcome)});
  }
  read_bytes_ -= read->batch.bytes;
  std::erase_if(reads_, [&header](const Read& ended) { return ended.number == header.number; });
  return {};
}

}  // namespace p2p::tcp
