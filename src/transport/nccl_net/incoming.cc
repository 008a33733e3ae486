// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/incoming.h"

#include <limits>
#include <utility>

#include "base/error.h"

namespace p2p::nccl_net {
namespace {

// A peer with 64 batches under way in each role announces far fewer.
constexpr std::size_t kMaxAnnounced = 8192;
// Copies of one launch: at least what one chunk can be cut into.
constexpr std::size_t kListBlocks = 8192;
static_assert(kListBlocks >= abi::kUnpackEntries + kMaxRanges);
// Smaller ones are not worth a registration.
constexpr std::uint64_t kInPlace = 4096;

}  // namespace

Result<Incoming> Incoming::open(RecvComm comm, const MemoryType& type, unsigned gpu_blocks,
                                IncomingHandler handler) {
  auto staging = Staging::open(comm.comm, type);
  if (!staging) return tl::unexpected(staging.error());
  Incoming made(std::move(comm), type, std::move(handler), std::move(*staging));
  if (type.device < 0) return made;
  auto copier = device::Copier::open(
      type.device, {.grid = {.ctas = gpu_blocks},
                    .bulk_bytes = gpu_blocks == 0 ? 0 : std::numeric_limits<std::uint64_t>::max(),
                    .blocks = kListBlocks,
                    .lists = kMaxRequests});
  if (!copier) return tl::unexpected(copier.error());
  made.copier_ = std::move(*copier);
  return made;
}

Incoming::Incoming(RecvComm comm, const MemoryType& type, IncomingHandler handler, Staging staging)
    : handler_(std::move(handler)), type_(type), staging_(std::move(staging)) {
  handles_.emplace(comm.comm, type.pointer);
  window_.emplace(std::move(comm));
}

Incoming::~Incoming() {
  copier_.reset();  // waits for its copies
  // The comm closes with its last holder; only then may regions go.
  window_.reset();
  handles_.reset();
  staging_.reset();
  for (const Posted& posted : posted_) {
    if (posted.staged == nullptr && posted.pieces.front().owner) posted.pieces.front().owner->end_access();
  }
  for (const Landing& landing : landings_) {
    for (const Landed& landed : landing.chunks) {
      for (const auto& registration : landed.accesses) registration->end_access();
    }
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
  if (auto read = read_arrival(**arrival, proof.size()); !read) return tl::unexpected(read.error());
  const bool pooled = type_.unpacks() && (*arrival)->unpack;
  const auto copied = copy_proof(pooled ? window_->comm().unpack->pool : staging_->slot(0), proof);
  if (!copied) return tl::unexpected(copied.error());
  if (auto consumed = window_->consume(); !consumed) return tl::unexpected(consumed.error());
  return proof;
}

Status Incoming::copy_proof(const std::byte* source, Proof& proof) {
  const kernels::Block block{0, proof.size(), proof.data()};
  copies_.clear();
  kernels::plan_unpack(source, fragments_, {&block, 1}, copies_);
  if (!copier_) {
    kernels::copy_on_host(copies_);
    return {};
  }
  for (const kernels::CopyBlock& copy : copies_) {
    if (auto copied = cuda::copy_now(copy.target, copy.source, copy.bytes); !copied) return copied;
  }
  return {};
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
  // Bounded by the receives that are posted.
  for (bool stepped = true; stepped; moved = moved || stepped) {
    const auto arrived = take_arrivals();
    if (!arrived) return arrived;
    const auto finished = finish_landings();
    if (!finished) return finished;
    stepped = *arrived || *finished;
  }
  return moved;
}

/// The comm's handle on the pieces if the plugin can put the bytes right there.
const MemoryHandle* Incoming::in_place(const std::vector<Piece>& pieces, const Chunk& chunk) {
  const bool scattered = window_->comm().unpack && type_.unpacks();
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

/// Everything that has come goes into one launch; the processor takes chunks one by one, so that the plugin
/// has its pages back soon.
Result<bool> Incoming::take_arrivals() {
  Landing landing;
  std::size_t blocks = 0;
  while (window_->waiting() && (copier_ || landing.chunks.empty()) &&
         blocks + abi::kUnpackEntries + kMaxRanges <= kListBlocks) {
    const auto arrival = window_->poll();
    if (!arrival) return tl::unexpected(arrival.error());
    if (!*arrival) break;
    copies_.clear();
    Posted& posted = posted_.front();
    if (posted.staged == nullptr) {
      Accesses accesses;
      if (posted.pieces.front().owner) accesses.push_back(posted.pieces.front().owner);
      landing.chunks.push_back({std::move(posted.chunk), std::move(accesses), {}});
    } else {
      if (auto read = read_arrival(**arrival, posted.chunk.size); !read) return tl::unexpected(read.error());
      const bool pooled = type_.unpacks() && (*arrival)->unpack;
      landing.chunks.push_back(land(posted, pooled ? window_->comm().unpack->pool : posted.staged));
    }
    posted_.pop_front();
    if (!copier_) {
      kernels::copy_on_host(copies_);
    } else if (!copies_.empty()) {
      // At most as many landings as requests are under way, so that one list is always free.
      if (landing.list == nullptr) landing.list = copier_->take();
      for (const kernels::CopyBlock& copy : copies_) copier_->add(*landing.list, copy, true);
      blocks += copies_.size();
    }
  }
  if (landing.chunks.empty()) return false;
  if (landing.list != nullptr) copier_->start(*landing.list);
  landings_.push_back(std::move(landing));
  return true;
}

/// Fills `fragments_`: where the plugin left the bytes.
Status Incoming::read_arrival(const Arrival& arrival, std::uint64_t size) {
  if (!type_.unpacks() || !arrival.unpack) {
    fragments_.assign(1, {0, static_cast<std::uint32_t>(size), 0});
    return {};
  }
  fragments_.clear();
  for (const abi::UnpackEntry& entry : arrival.entries) {
    fragments_.push_back({entry.source, entry.size, entry.destination});
  }
  if (kernels::fills(fragments_, size)) return {};
  return fail(ErrorCode::kProtocol, "receive {} on {}: its fragments do not add up to the {} bytes announced",
              arrival.sequence, window_->comm().comm->device(), size);
}

/// Plans in `copies_` how the bytes of `fragments_` get to the chunk's pieces.
Incoming::Landed Incoming::land(Posted& posted, const std::byte* source) {
  Landed landed{std::move(posted.chunk), {}, {}};
  if (posted.dropped && posted.pieces.empty()) return landed;
  if (posted.dropped) {
    landed.status = fail(ErrorCode::kNotFound, "write to a region: it was revoked");
    return landed;
  }
  blocks_.clear();
  std::uint64_t offset = 0;
  for (const Piece& piece : posted.pieces) {
    const bool held = !piece.owner || (!landed.accesses.empty() && landed.accesses.back() == piece.owner);
    if (!held && !piece.owner->begin_access()) {
      landed.status = fail(ErrorCode::kNotFound, "write to a region: it was revoked");
      break;
    }
    if (!held) landed.accesses.push_back(piece.owner);
    blocks_.push_back({offset, piece.size, piece.data});
    offset += piece.size;
  }
  kernels::plan_unpack(source, fragments_, blocks_, copies_);
  return landed;
}

/// In order, since the plugin wants its receives back in order.
Result<bool> Incoming::finish_landings() {
  bool moved = false;
  while (!landings_.empty()) {
    Landing& landing = landings_.front();
    if (landing.list != nullptr) {
      if (!copier_->finished(*landing.list)) break;
      const Status landed = landing.list->status();
      copier_->give_back(*std::exchange(landing.list, nullptr));
      if (!landed) return tl::unexpected(landed.error());
    }
    for (Landed& landed : landing.chunks) {
      if (auto finished = finish(landed); !finished) return tl::unexpected(finished.error());
    }
    landings_.pop_front();
    moved = true;
  }
  return moved;
}

Status Incoming::finish(Landed& landed) {
  if (auto consumed = window_->consume(); !consumed) return consumed;
  for (const auto& registration : landed.accesses) registration->end_access();
  landed.accesses.clear();
  handler_.landed(landed.chunk, landed.status);
  return {};
}

}  // namespace p2p::nccl_net
