// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/requests/read_requests.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "transport/tcp/staging/staged_memory.h"

namespace p2p::tcp {

bool ReadRequests::post(const Batch& batch) {
  if (reads_.size() >= kMaxReads || !window_.has_room(bytes_, batch.bytes)) return false;
  Read read{.number = next_, .batch = batch, .outcome = {}};
  if (starts_on_device(batch)) {
    Result<Slot*> slot = nullptr;
    if (const Status fits = StagedMemory::check_size(batch.bytes); fits) {
      slot = staging_->take(device::Staging::Use::kAnswer);
    } else {
      slot = tl::unexpected(fits.error());
    }
    if (slot && *slot == nullptr) return false;
    if (!slot) {
      completions_.push_back({batch.id, tl::unexpected(slot.error())});
      return true;
    }
    read.slot = *slot;
  }
  if (bytes_ == 0 && window_.long_path()) window_.begin(ReadWindow::Clock::now());
  sender_.post_read_request(read.number, batch);
  ++next_;
  bytes_ += batch.bytes;
  reads_.push_back(std::move(read));
  return true;
}

ReadRequests::Read* ReadRequests::find(std::uint64_t number) {
  const auto found = std::find_if(reads_.begin(), reads_.end(),
                                  [number](const Read& read) { return read.number == number; });
  return found == reads_.end() ? nullptr : &*found;
}

Status ReadRequests::begin_response(const FrameHeader& header, Landing& landing) {
  const Read* read = find(header.number);
  if (read == nullptr || read->landed || header.payload_bytes != read->batch.bytes) {
    return p2p::fail(ErrorCode::kProtocol, "{} bytes for read {} were not asked for", header.payload_bytes,
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

void ReadRequests::end_response(const FrameHeader& header, const Landing& landing) {
  Read* const read = find(header.number);
  if (read == nullptr) return;
  read->landed = true;
  if (landing.refusal) {
    read->outcome = tl::unexpected(*landing.refusal);
  } else if (read->slot != nullptr) {
    unpack(*read);
  }
}

// Memory that was freed meanwhile is not touched: the bytes stay in the slot.
void ReadRequests::unpack(Read& read) {
  read.outcome = check_alive(read.batch);
  if (read.outcome) staging_->unpack(*read.slot, StagedMemory::of(read.batch).pieces);
}

Status ReadRequests::end(const FrameHeader& header, ByteView reason) {
  Read* const read = find(header.number);
  if (read == nullptr || read->ended || (header.code == 0 && !read->landed && read->batch.bytes != 0)) {
    return p2p::fail(ErrorCode::kProtocol, "read {} ends before its bytes have come", header.number);
  }
  if (window_.long_path()) window_.ended(read->batch.bytes, ReadWindow::Clock::now());
  if (header.code != 0 && read->outcome) read->outcome = tl::unexpected(wire_error(header.code, reason));
  if (read->slot != nullptr) {
    read->ended = true;
    return {};
  }
  if (!read->abandoned) completions_.push_back({read->batch.id, std::move(read->outcome)});
  bytes_ -= read->batch.bytes;
  std::erase_if(reads_, [&header](const Read& ended) { return ended.number == header.number; });
  return {};
}

bool ReadRequests::settle() {
  bool moved = false;
  for (std::size_t i = 0; i < reads_.size();) {
    Read& read = reads_[i];
    if (read.slot == nullptr || !read.ended || !read.slot->finished()) {
      ++i;
      continue;
    }
    if (read.outcome) read.outcome = read.slot->status();
    staging_->give_back(*read.slot);
    if (!read.abandoned) completions_.push_back({read.batch.id, std::move(read.outcome)});
    bytes_ -= read.batch.bytes;
    reads_.erase(reads_.begin() + static_cast<std::ptrdiff_t>(i));
    moved = true;
  }
  return moved;
}

bool ReadRequests::busy() const {
  return std::any_of(reads_.begin(), reads_.end(),
                     [](const Read& read) { return read.slot != nullptr && read.ended; });
}

void ReadRequests::abandon(BatchId id, Receiver& receiver) {
  const auto read = std::find_if(reads_.begin(), reads_.end(), [id](const Read& candidate) {
    return !candidate.abandoned && candidate.batch.id == id;
  });
  // A copy to a device that has begun ends within moments, with the true outcome.
  if (read == reads_.end() || (read->slot != nullptr && read->landed)) return;
  completions_.push_back({id, p2p::fail(ErrorCode::kCancelled, "cancelled before its end")});
  if (sender_.withdraw_read_request(read->number)) {
    bytes_ -= read->batch.bytes;
    if (read->slot != nullptr) staging_->give_back(*read->slot);
    reads_.erase(read);
    return;
  }
  read->abandoned = true;
  read->batch.segments = {};
  receiver.discard_response(read->number);
}

void ReadRequests::fail(const Error& why) {
  for (const Read& read : reads_) {
    if (!read.abandoned) completions_.push_back({read.batch.id, tl::unexpected(why)});
  }
  reads_.clear();
}

}  // namespace p2p::tcp
