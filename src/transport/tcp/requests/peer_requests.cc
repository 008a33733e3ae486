// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/requests/peer_requests.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace p2p::tcp {
namespace {

// While more frames keep coming, one acknowledgement covers this many or this much.
constexpr std::uint64_t kFramesPerAcknowledgement = 16;
constexpr std::uint64_t kBytesPerAcknowledgement = 1U << 20;

}  // namespace

Status PeerRequests::begin_write(const FrameHeader& header, ByteView descriptors, Landing& landing) {
  const std::uint64_t before = sender_.writes_done() + arrivals_.size();
  if (header.number != before + 1) {
    return fail(ErrorCode::kProtocol, "write {} follows write {}", header.number, before);
  }
  if (Status status = decode_ranges(descriptors, header.payload_bytes, ranges_); !status) return status;
  if (Status status = resolve(Operation::kWrite, landing); !status) {
    landing.clear();
    landing.refusal = status.error();
    return {};
  }
  if (!resolved_to_device()) return {};
  StagedMemory memory = stage(landing);
  const std::uint64_t bytes = memory.bytes;
  const Result<std::byte*> slot = arrivals_.begin(std::move(memory));
  if (slot) {
    landing.pieces.push_back({*slot, bytes});
  } else {
    landing.refusal = slot.error();
  }
  return {};
}

Status PeerRequests::end_write(const FrameHeader& header, const Landing& landing) {
  Status outcome = landing.refusal ? tl::unexpected(*landing.refusal) : Status();
  if (!arrivals_.busy()) return write_ended(outcome, header.payload_bytes);
  arrivals_.landed(std::move(outcome), header.payload_bytes);
  return {};
}

Status PeerRequests::settle() {
  while (const auto ended = arrivals_.next_ended()) {
    if (Status status = write_ended(ended->outcome, ended->bytes); !status) return status;
  }
  return {};
}

void PeerRequests::acknowledge() {
  if (unacknowledged_frames_ == 0) return;
  unacknowledged_frames_ = unacknowledged_bytes_ = 0;
  sender_.want_acknowledgement();
}

Status PeerRequests::write_ended(const Status& outcome, std::uint64_t bytes) {
  Status status = sender_.write_done(outcome);
  if (!status) return status;
  ++unacknowledged_frames_;
  unacknowledged_bytes_ += bytes;
  if (unacknowledged_frames_ < kFramesPerAcknowledgement &&
      unacknowledged_bytes_ < kBytesPerAcknowledgement) {
    return {};
  }
  acknowledge();
  const Result<bool> flushed = sender_.flush();
  return flushed ? Status() : tl::unexpected(flushed.error());
}

Status PeerRequests::serve_read(const FrameHeader& header, ByteView descriptors) {
  if (sender_.peer_reads() + departures_.responses() >= kMaxReads) {
    return fail(ErrorCode::kProtocol, "the peer has more than {} reads under way", kMaxReads);
  }
  if (Status status = decode_ranges(descriptors, header.length, ranges_); !status) return status;
  source_.clear();
  const Status resolved = resolve(Operation::kRead, source_);
  if (!resolved || header.length == 0) {
    sender_.end_read(header.number, resolved);
  } else if (resolved_to_device()) {
    departures_.respond(header.number, stage(source_));
  } else {
    sender_.respond(header.number, source_.pieces, source_.guards);
  }
  source_.clear();
  return {};
}

// The ranges as memory of mine; kNotFound, kPermissionDenied or kOutOfRange if one of them may not be used.
Status PeerRequests::resolve(Operation operation, Landing& landing) {
  const RemoteRange* range = ranges_.ranges.data();
  places_.clear();
  for (const RangeGroup& group : ranges_.groups) {
    std::shared_ptr<Registration> registration;
    for (std::size_t i = 0; i != group.count; ++i, ++range) {
      if (!registration || !registration->contains(range->address, range->size)) {
        Result<std::shared_ptr<Registration>> found =
            regions_.find(operation, group.region, group.key, range->address, range->size);
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

bool PeerRequests::resolved_to_device() const {
  return std::any_of(places_.begin(), places_.end(),
                     [](const MemoryPlace& place) { return place.kind == MemoryKind::kCuda; });
}

// What `resolve` found, to go through a slot.
StagedMemory PeerRequests::stage(Landing& landing) const {
  StagedMemory memory;
  const iovec* piece = landing.pieces.data();
  for (std::size_t group = 0; group != ranges_.groups.size(); ++group) {
    for (std::size_t i = 0; i != ranges_.groups[group].count; ++i, ++piece) {
      memory.add(static_cast<std::byte*>(piece->iov_base), piece->iov_len, places_[group]);
    }
  }
  memory.owners = std::move(landing.guards);
  landing.clear();
  return memory;
}

}  // namespace p2p::tcp
