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
// Chunks that are announced and not yet posted at most: enough to hide the session's latency, few enough that
// a cancelled transfer ends soon.
constexpr std::size_t kAhead = 48;

}  // namespace

Result<Outgoing> Outgoing::open(SendComm comm, const Flow& flow, Announce announce) {
  auto staging = SlotMemory::open(comm.comm, flow);
  if (!staging) return tl::unexpected(staging.error());
  Outgoing made(std::move(comm), flow, std::move(announce), std::move(*staging));
  if (flow.device < 0) return made;
  auto copier = device::Copier::open(flow.device, {.grid = {.ctas = flow.gpu_blocks},
                                                   .bulk_bytes = device::all_by_kernel(flow.gpu_blocks),
                                                   .blocks = kMaxRanges,
                                                   .lists = flow.window});
  if (!copier) return tl::unexpected(copier.error());
  made.copier_ = std::move(*copier);
  return made;
}

Outgoing::Outgoing(SendComm comm, const Flow& flow, Announce announce, SlotMemory staging)
    : announce_(std::move(announce)), chunk_bytes_(flow.chunk_bytes), staging_(std::move(staging)) {
  handles_.emplace(comm.comm, flow);
  window_.emplace(std::move(comm), flow.window);
}

Outgoing::~Outgoing() {
  copier_.reset();  // waits for its copies
  // The comm closes with its last holder; only then may regions go.
  window_.reset();
  handles_.reset();
  staging_.reset();
  waiting_.clear();
  sent_.clear();
}

Result<bool> Outgoing::send_proof(ByteView proof) {
  std::byte* const slot = staging_->take(proof.size());
  if (slot == nullptr) return false;
  if (copier_) {
    if (auto copied = cuda::copy_now(slot, proof.data(), proof.size()); !copied)
      return tl::unexpected(copied.error());
  } else {
    std::memcpy(slot, proof.data(), proof.size());
  }
  const auto posted = window_->post(slot, proof.size(), staging_->handle());
  if (posted && *posted) {
    sent_.push_back({.slot = slot, .size = proof.size()});
  } else {
    staging_->give_back(slot, proof.size());
  }
  return posted;
}

void Outgoing::close(OutgoingBatch& batch) {
  batch.closed = true;
  std::erase_if(queue_, [&](const auto& queued) { return queued.get() == &batch; });
}

Result<bool> Outgoing::progress() {
  bool moved = false;
  for (bool stepped = true; stepped; moved = moved || stepped) {
    stepped = false;
    if (!queue_.empty() && waiting_.size() < kAhead) {
      cut_next();
      stepped = true;
    }
    const auto placed = place_next();
    if (!placed) return placed;
    stepped = stepped || *placed;
    if (ready_ != 0) {
      const auto posted = post_next();
      if (!posted) return posted;
      stepped = stepped || *posted;
    }
  }
  while (!window_->empty()) {
    const auto done = window_->poll();
    if (!done) return done;
    if (!*done) break;
    const Sending& sent = sent_.front();
    if (sent.slot != nullptr) staging_->give_back(sent.slot, sent.size);
    if (sent.batch) --sent.batch->in_flight;
    sent_.pop_front();
    moved = true;
  }
  return moved;
}

/// Announces the next chunk.
void Outgoing::cut_next() {
  const std::shared_ptr<OutgoingBatch> batch = queue_.front();
  Sending sending{.batch = batch};
  Cut next = cut(*batch);
  if (const Status alive = check_alive(next.pieces); !alive) {
    batch->failed = alive.error();
  } else if (!begin_accesses(next, sending)) {
    batch->failed = Error{ErrorCode::kNotFound, "read a region: it was revoked"};
  } else if (const Status good = copier_ ? Status() : check_readable(next.pieces); !good) {
    // Before the peer counts on it, and a plugin loses its comm by it.
    batch->failed = good.error();
  }
  if (batch->failed) {
    close(*batch);
    return;
  }
  ++batch->in_flight;
  batch->posted_any = true;
  advance(*batch, next.chunk.size);
  next.chunk.sequence = sequence_++;
  next.chunk.last = batch->left == 0;
  if (next.chunk.last) close(*batch);
  sending.pieces = std::move(next.pieces);
  sending.size = next.chunk.size;
  waiting_.push_back(std::move(sending));
  announce_(Message(std::move(next.chunk)));
}

Outgoing::Cut Outgoing::cut(const OutgoingBatch& batch) const {
  Cut made;
  made.chunk.batch = batch.id;
  made.chunk.response = batch.response;
  std::uint64_t offset = batch.offset;
  for (std::size_t index = batch.next; index < batch.pieces.size(); ++index, offset = 0) {
    const LocalRange& piece = batch.pieces[index];
    const std::uint64_t room = chunk_bytes_ - made.chunk.size;
    const std::uint64_t size = std::min(piece.size - offset, room);
    if (!made.pieces.empty() && piece.size - offset >= kAlone) break;
    if (size == 0 || made.pieces.size() == kMaxRanges) break;
    made.pieces.push_back({piece.data + offset, size, piece.registration, piece.peers});
    if (!batch.response) {
      RegionRange range = batch.targets[index];
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

bool Outgoing::begin_accesses(const Cut& cut, Sending& sending) {
  const Registration* last = nullptr;
  for (const LocalRange& piece : cut.pieces) {
    if (!piece.peers || piece.registration == last) continue;
    last = piece.registration;
    if (!sending.accesses.emplace_back(*last)) return false;
  }
  return true;
}

/// Decides from where the oldest chunk without a place goes. False: not now.
Result<bool> Outgoing::place_next() {
  if (ready_ == waiting_.size()) return false;
  const auto placed = place(waiting_[ready_]);
  if (!placed || !*placed) return placed;
  ++ready_;
  return true;
}

/// Starts to bring it there if need be. An error where memory has turned bad since it was announced.
Result<bool> Outgoing::place(Sending& sending) {
  if (contiguous(sending.pieces) && sending.size >= kAlone) {
    sending.data = sending.pieces.front().data;
    sending.handle = handles_->find(*sending.pieces.front().registration);
    if (sending.handle != nullptr) return true;
  }
  if (sending.slot == nullptr) sending.slot = staging_->take(sending.size);
  std::byte* out = sending.slot;
  if (out == nullptr) return false;
  sending.data = out;
  sending.handle = &staging_->handle();
  if (!copier_) {
    if (Status gathered = gather_on_host(sending.pieces, out); !gathered) {
      return tl::unexpected(gathered.error());
    }
    return true;
  }
  const device::Job::Part part = sending.gather.part(*copier_);
  if (part.list == nullptr) return false;
  for (const LocalRange& piece : sending.pieces) {
    part.add({piece.data, out, piece.size});
    out += piece.size;
  }
  sending.gather.start();
  return true;
}

/// Sends the oldest chunk that has a place. False: not now.
Result<bool> Outgoing::post_next() {
  Sending& sending = waiting_.front();
  if (!sending.gather.finished()) return false;
  if (!sending.gather.status()) return tl::unexpected(sending.gather.status().error());
  const auto posted = window_->post(sending.data, sending.size, *sending.handle);
  if (!posted || !*posted) return posted;
  sending.pieces.clear();
  sent_.push_back(std::move(sending));
  waiting_.pop_front();
  --ready_;
  return true;
}

}  // namespace p2p::nccl_net
