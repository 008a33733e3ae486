// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/incoming.h"

#include <cstring>
#include <utility>

#include "base/error.h"

namespace p2p::nccl_net {
namespace {

// A peer with 64 batches under way in each role announces far fewer.
constexpr std::size_t kMaxAnnounced = 8192;
// Smaller ones are not worth a registration.
constexpr std::uint64_t kInPlace = 4096;

}  // namespace

Result<Incoming> Incoming::open(RecvComm comm, abi::PointerType type, IncomingHandler handler) {
  auto staging = Staging::open(comm.comm, type);
  if (!staging) return tl::unexpected(staging.error());
  return Incoming(std::move(comm), type, std::move(handler), std::move(*staging));
}

Incoming::Incoming(RecvComm comm, abi::PointerType type, IncomingHandler handler, Staging staging)
    : handler_(std::move(handler)), type_(type), staging_(std::move(staging)) {
  handles_.emplace(comm.comm, type);
  window_.emplace(std::move(comm));
}

Incoming::~Incoming() {
  // The comm closes with its last holder; only then may regions go.
  window_.reset();
  handles_.reset();
  staging_.reset();
  for (const Posted& posted : posted_) {
    if (posted.staged == nullptr && posted.pieces.front().owner) posted.pieces.front().owner->end_access();
  }
}

Result<std::optional<Incoming::Proof>> Incoming::poll_proof() {
  if (!proof_posted_) {
    const auto posted = window_->post(staging_->slot(0), sizeof(Proof), staging_->handle());
    if (!posted) return tl::unexpected(posted.error());
    proof_posted_ = *posted;
    if (!proof_posted_) return std::nullopt;
    ++receives_;
  }
  const auto arrival = window_->poll();
  if (!arrival) return tl::unexpected(arrival.error());
  if (!*arrival) return std::nullopt;
  Proof proof{};
  Posted posted{.staged = staging_->slot(0)};
  posted.chunk.size = proof.size();
  posted.pieces.push_back({proof.data(), proof.size(), nullptr, nullptr});
  Status outcome;
  if (auto landed = land(posted, **arrival, outcome); !landed) return tl::unexpected(landed.error());
  if (auto consumed = window_->consume(); !consumed) return tl::unexpected(consumed.error());
  return proof;
}

Status Incoming::announce(Chunk chunk) {
  if (chunk.sequence != announced_ || waiting_.size() == kMaxAnnounced) {
    return fail(ErrorCode::kProtocol, "chunk {} was announced where {} is next and {} wait", chunk.sequence,
                announced_, waiting_.size());
  }
  ++announced_;
  waiting_.push_back(std::move(chunk));
  return {};
}

Result<bool> Incoming::progress() {
  bool moved = false;
  while (!waiting_.empty() && !window_->full()) {
    const auto posted = post_next();
    if (!posted) return posted;
    if (!*posted) break;
    moved = true;
  }
  while (window_->waiting()) {
    const auto arrived = take_arrival();
    if (!arrived) return arrived;
    if (!*arrived) break;
    moved = true;
  }
  return moved;
}

/// The comm's handle on the pieces if the plugin can put the bytes right there.
const MemoryHandle* Incoming::in_place(const std::vector<Piece>& pieces, const Chunk& chunk) {
  const bool scattered = window_->comm().unpack && type_ == abi::kPointerCuda;
  if (scattered || chunk.size < kInPlace || !contiguous(pieces)) return nullptr;
  return handles_->find(*pieces.front().registration);
}

Result<bool> Incoming::post_next() {
  Posted next{.chunk = waiting_.front()};
  auto pieces = handler_.resolve(next.chunk);
  next.dropped = !pieces;
  if (pieces) next.pieces = std::move(*pieces);
  const MemoryHandle* handle = in_place(next.pieces, next.chunk);
  const Piece* first = next.pieces.empty() ? nullptr : &next.pieces.front();
  if (handle != nullptr && first->owner && !first->owner->begin_access()) {
    next.dropped = true;
    handle = nullptr;
  }
  Result<bool> posted = false;
  if (handle != nullptr) {
    posted = window_->post(first->data, next.chunk.size, *handle);
    if ((!posted || !*posted) && first->owner) first->owner->end_access();
  } else {
    next.staged = staging_->slot(receives_);
    posted = window_->post(next.staged, next.chunk.size, staging_->handle());
  }
  if (!posted) return posted;
  waiting_.pop_front();
  if (!*posted) {
    // Resolving it again would count its bytes twice: plugins that answer so are not connected yet, which
    // the proof rules out.
    return fail(ErrorCode::kSystem, "irecv on {}: the plugin takes no request of a free window",
                window_->comm().comm->device());
  }
  ++receives_;
  posted_.push_back(std::move(next));
  return true;
}

Result<bool> Incoming::take_arrival() {
  const auto arrival = window_->poll();
  if (!arrival) return tl::unexpected(arrival.error());
  if (!*arrival) return false;
  Status outcome;
  if (auto landed = land(posted_.front(), **arrival, outcome); !landed) return tl::unexpected(landed.error());
  if (auto consumed = window_->consume(); !consumed) return tl::unexpected(consumed.error());
  const Posted done = std::move(posted_.front());
  posted_.pop_front();
  ++landed_;
  handler_.landed(done.chunk, outcome);
  return true;
}

Status Incoming::read_fragments(const Arrival& arrival, std::uint64_t size) {
  fragments_.clear();
  for (const abi::UnpackEntry& entry : arrival.entries) {
    fragments_.push_back({entry.source, entry.size, entry.destination});
  }
  if (kernels::fills(fragments_, size)) return {};
  return fail(ErrorCode::kProtocol, "receive {} on {}: its fragments do not add up to the {} bytes announced",
              arrival.sequence, window_->comm().comm->device(), size);
}

/// Moves the bytes on from where the plugin left them. An error is the channel's; `outcome` is the chunk's.
Status Incoming::land(const Posted& posted, const Arrival& arrival, Status& outcome) {
  if (posted.staged == nullptr) {
    if (posted.pieces.front().owner) posted.pieces.front().owner->end_access();
    return {};
  }
  const bool unpack = arrival.unpack && type_ == abi::kPointerCuda;
  if (unpack) {
    if (auto read = read_fragments(arrival, posted.chunk.size); !read) return read;
  } else {
    fragments_.assign(1, {0, static_cast<std::uint32_t>(posted.chunk.size), 0});
  }
  if (posted.dropped) {
    // Without pieces the handler has refused it, and knows why.
    if (!posted.pieces.empty()) outcome = fail(ErrorCode::kNotFound, "write to a region: it was revoked");
    return {};
  }
  blocks_.clear();
  std::uint64_t offset = 0;
  for (const Piece& piece : posted.pieces) {
    if (piece.owner && !piece.owner->begin_access()) {
      outcome = fail(ErrorCode::kNotFound, "write to a region: it was revoked");
      break;
    }
    blocks_.push_back({offset, piece.size, piece.data});
    offset += piece.size;
  }
  copies_.clear();
  const std::byte* const pool = unpack ? window_->comm().unpack->pool : posted.staged;
  kernels::plan_unpack(pool, fragments_, blocks_, copies_);
  kernels::copy_on_host(copies_);
  for (std::size_t index = 0; index < blocks_.size(); ++index) {
    if (posted.pieces[index].owner) posted.pieces[index].owner->end_access();
  }
  return {};
}

}  // namespace p2p::nccl_net
