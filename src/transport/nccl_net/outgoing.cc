// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/outgoing.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace p2p::nccl_net {
namespace {

// A piece of at least this size travels alone, from where it lies; smaller ones are gathered.
constexpr std::uint64_t kAlone = std::uint64_t{64} << 10;

void end_accesses(std::vector<std::shared_ptr<Registration>>& accesses) {
  for (const auto& registration : accesses) registration->end_access();
  accesses.clear();
}

}  // namespace

Result<Outgoing> Outgoing::open(SendComm comm, abi::PointerType type, Announce announce) {
  auto staging = Staging::open(comm.comm, type);
  if (!staging) return tl::unexpected(staging.error());
  return Outgoing(std::move(comm), type, std::move(announce), std::move(*staging));
}

Outgoing::Outgoing(SendComm comm, abi::PointerType type, Announce announce, Staging staging)
    : announce_(std::move(announce)), staging_(std::move(staging)) {
  handles_.emplace(comm.comm, type);
  window_.emplace(std::move(comm));
}

Outgoing::~Outgoing() {
  // The comm closes with its last holder; only then may regions go.
  window_.reset();
  handles_.reset();
  staging_.reset();
  for (Sent& sent : sent_) end_accesses(sent.accesses);
}

Result<bool> Outgoing::send_proof(ByteView proof) {
  std::memcpy(staging_->slot(0), proof.data(), proof.size());
  const auto posted = window_->post(staging_->slot(0), proof.size(), staging_->handle());
  if (posted && *posted) sent_.push_back({});
  return posted;
}

void Outgoing::close(OutgoingBatch& batch) {
  batch.closed = true;
  std::erase_if(queue_, [&](const auto& queued) { return queued.get() == &batch; });
}

Result<bool> Outgoing::progress() {
  bool moved = false;
  while (!queue_.empty() && !window_->full()) {
    const auto posted = post_next();
    if (!posted) return posted;
    if (!*posted) break;
    moved = true;
  }
  while (!window_->empty()) {
    const auto done = window_->poll();
    if (!done) return done;
    if (!*done) break;
    end_accesses(sent_.front().accesses);
    if (sent_.front().batch) --sent_.front().batch->in_flight;
    sent_.pop_front();
    moved = true;
  }
  return moved;
}

/// The next chunk of the first batch. False: not now.
Result<bool> Outgoing::post_next() {
  const std::shared_ptr<OutgoingBatch> batch = queue_.front();
  Cut next = cut(*batch);
  Sent sent{batch, {}};
  if (!begin_accesses(next, sent)) {
    end_accesses(sent.accesses);
    batch->failed = Error{ErrorCode::kNotFound, "read a region: it was revoked"};
    close(*batch);
    return true;
  }
  const auto posted = post(next);
  if (!posted || !*posted) {
    end_accesses(sent.accesses);
    return posted;
  }
  ++batch->in_flight;
  batch->posted_any = true;
  advance(*batch, next.chunk.size);
  next.chunk.sequence = sequence_++;
  next.chunk.last = batch->left == 0;
  if (next.chunk.last) close(*batch);
  sent_.push_back(std::move(sent));
  announce_(Message(std::move(next.chunk)));
  return true;
}

Outgoing::Cut Outgoing::cut(const OutgoingBatch& batch) {
  Cut made;
  made.chunk.batch = batch.id;
  made.chunk.response = batch.response;
  std::uint64_t offset = batch.offset;
  for (std::size_t index = batch.next; index < batch.pieces.size(); ++index, offset = 0) {
    const Piece& piece = batch.pieces[index];
    const std::uint64_t room = kChunkBytes - made.chunk.size;
    const std::uint64_t size = std::min(piece.size - offset, room);
    if (!made.pieces.empty() && piece.size - offset >= kAlone) break;
    if (size == 0 || made.pieces.size() == kMaxRanges) break;
    made.pieces.push_back({piece.data + offset, size, piece.registration, piece.owner});
    if (!batch.response) {
      Range range = batch.targets[index];
      range.address += offset;
      range.size = size;
      made.chunk.ranges.push_back(range);
    }
    made.chunk.size += size;
    if (size >= kAlone) break;
  }
  return made;
}

void Outgoing::advance(OutgoingBatch& batch, std::uint64_t bytes) {
  batch.left -= bytes;
  while (bytes != 0) {
    const std::uint64_t step = std::min(bytes, batch.pieces[batch.next].size - batch.offset);
    batch.offset += step;
    bytes -= step;
    if (batch.offset != batch.pieces[batch.next].size) continue;
    ++batch.next;
    batch.offset = 0;
  }
}

bool Outgoing::begin_accesses(const Cut& cut, Sent& sent) {
  for (const Piece& piece : cut.pieces) {
    if (!piece.owner || (!sent.accesses.empty() && sent.accesses.back() == piece.owner)) continue;
    if (!piece.owner->begin_access()) return false;
    sent.accesses.push_back(piece.owner);
  }
  return true;
}

Result<bool> Outgoing::post(const Cut& cut) {
  if (contiguous(cut.pieces) && cut.chunk.size >= kAlone) {
    if (const MemoryHandle* handle = handles_->find(*cut.pieces.front().registration)) {
      return window_->post(cut.pieces.front().data, cut.chunk.size, *handle);
    }
  }
  // The window is not full, so the slot of the 16th send before this one is free.
  std::byte* const slot = staging_->slot(window_->posted());
  std::byte* out = slot;
  for (const Piece& piece : cut.pieces) {
    std::memcpy(out, piece.data, piece.size);
    out += piece.size;
  }
  return window_->post(slot, cut.chunk.size, staging_->handle());
}

}  // namespace p2p::nccl_net
