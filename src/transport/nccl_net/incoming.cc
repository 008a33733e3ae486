// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/incoming.h"

#include <utility>

#include "base/error.h"
#include "base/safe_copy.h"

namespace p2p::nccl_net {
namespace {

// A peer with 64 batches under way in each role announces far fewer.
constexpr std::size_t kMaxAnnounced = 8192;
static_assert(device::Unpacker::kLaunchBlocks >= abi::kUnpackEntries + kMaxRanges);
// Smaller ones are not worth a registration.
constexpr std::uint64_t kInPlace = 4096;

}  // namespace

Result<Incoming> Incoming::open(RecvComm comm, const Flow& flow, std::shared_ptr<device::Unpacker> unpacker,
                                IncomingHandler handler) {
  auto staging = SlotMemory::open(comm.comm, flow);
  if (!staging) return tl::unexpected(staging.error());
  return Incoming(std::move(comm), flow, std::move(unpacker), std::move(handler), std::move(*staging));
}

Incoming::Incoming(RecvComm comm, const Flow& flow, std::shared_ptr<device::Unpacker> unpacker,
                   IncomingHandler handler, SlotMemory staging)
    : handler_(std::move(handler)),
      flow_(flow),
      unpacker_(std::move(unpacker)),
      staging_(std::move(staging)) {
  handles_.emplace(comm.comm, flow);
  window_.emplace(std::move(comm), flow.window);
}

Incoming::~Incoming() {
  for (const Landing& landing : landings_) {
    if (landing.receive) unpacker_->withdraw(*landing.receive);
  }
  // The comm closes with its last holder; only then may regions go.
  window_.reset();
  handles_.reset();
  staging_.reset();
  posted_.clear();
  resolved_.reset();
  landings_.clear();
}

Result<std::optional<Incoming::Proof>> Incoming::poll_proof() {
  if (proof_ == nullptr) {
    std::byte* const slot = staging_->take(sizeof(Proof));
    const auto posted = window_->post(slot, sizeof(Proof), staging_->handle());
    if (!posted) return tl::unexpected(posted.error());
    if (!*posted) {
      staging_->give_back(slot, sizeof(Proof));
      return std::nullopt;
    }
    proof_ = slot;
  }
  const auto arrival = window_->poll();
  if (!arrival) return tl::unexpected(arrival.error());
  if (!*arrival) return std::nullopt;
  Proof proof{};
  if (auto read = read_arrival(**arrival, proof.size()); !read) return tl::unexpected(read.error());
  const auto copied = copy_proof((*arrival)->unpack ? window_->comm().unpack->pool : proof_, proof);
  if (!copied) return tl::unexpected(copied.error());
  if (auto consumed = window_->consume(); !consumed) return tl::unexpected(consumed.error());
  staging_->give_back(proof_, proof.size());
  return proof;
}

Status Incoming::copy_proof(const std::byte* source, Proof& proof) {
  plan_.belong(proof.data(), proof.size());
  const auto& copies = plan_.copies_from(source);
  if (flow_.device < 0) {
    kernels::copy_on_host(copies);
    return {};
  }
  for (const kernels::CopyBlock& copy : copies) {
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
const MemoryHandle* Incoming::in_place(const std::vector<LocalRange>& pieces, const Chunk& chunk) {
  if (window_->comm().unpack || chunk.size < kInPlace || !contiguous(pieces)) return nullptr;
  // A plugin that meets bad memory loses its comm, or ends the process.
  if (flow_.device < 0 ? !writable({pieces.front().data, chunk.size}) : !check_alive(pieces)) return nullptr;
  return handles_->find(*pieces.front().registration);
}

Result<bool> Incoming::post_next() {
  if (!resolved_) {  // once: it counts the chunk's bytes
    resolved_.emplace(Posted{.chunk = waiting_.front()});
    auto places = handler_.resolve(resolved_->chunk);
    resolved_->dropped = !places;
    if (places) resolved_->places = std::move(*places);
  }
  Posted& next = *resolved_;
  const MemoryHandle* handle = in_place(next.places.pieces, next.chunk);
  // In place there is one region.
  const bool guarded = handle != nullptr && !next.places.owners.empty();
  if (guarded && !next.accesses.emplace_back(next.places.owners.front())) {
    next.accesses.clear();
    next.dropped = true;
    handle = nullptr;
  }
  Result<bool> posted = false;
  if (handle != nullptr) {
    posted = window_->post(next.places.pieces.front().data, next.chunk.size, *handle);
  } else {
    next.staged = staging_->take(next.chunk.size);
    if (next.staged == nullptr) return false;
    posted = window_->post(next.staged, next.chunk.size, staging_->handle());
  }
  if (!posted) return posted;
  if (!*posted) {
    next.accesses.clear();
    if (next.staged != nullptr) staging_->give_back(std::exchange(next.staged, nullptr), next.chunk.size);
    return false;
  }
  waiting_.pop_front();
  posted_.push_back(std::move(next));
  resolved_.reset();
  return true;
}

/// Hands what has come to the unpacker. The processor takes chunks one by one, so that the plugin has its
/// pages back soon.
Result<bool> Incoming::take_arrivals() {
  bool any = false;
  while (window_->waiting() && (flow_.device >= 0 || !any)) {
    const auto arrival = window_->poll();
    if (!arrival) return tl::unexpected(arrival.error());
    if (!*arrival) break;
    auto landing = take(**arrival, posted_.front());
    if (!landing) return tl::unexpected(landing.error());
    posted_.pop_front();
    ++arrived_;
    if (landing->receive) unpacker_->add(landing->receive);
    landings_.push_back(std::move(*landing));
    any = true;
  }
  if (!landings_.empty()) unpacker_->advance();
  return any;
}

Result<Incoming::Landing> Incoming::take(const Arrival& arrival, Posted& posted) {
  if (posted.staged == nullptr) {
    return Landing{{std::move(posted.chunk), std::move(posted.accesses), {}, nullptr}, nullptr};
  }
  if (auto read = read_arrival(arrival, posted.chunk.size); !read) return tl::unexpected(read.error());
  Landing landing{land(posted), nullptr};
  auto& copies = plan_.copies_from(arrival.unpack ? window_->comm().unpack->pool : posted.staged);
  if (flow_.device < 0) {
    if (Status here = land_on_host(copies); !here) landing.landed.status = std::move(here);
  } else if (!copies.empty()) {
    landing.receive = spare_receives_.take(copies);
  }
  return landing;
}

/// Tells the plan where the plugin left the bytes.
Status Incoming::read_arrival(const Arrival& arrival, std::uint64_t size) {
  if (!arrival.unpack) {
    plan_.lie_in_one(size);
    return {};
  }
  if (plan_.lie_as(arrival.entries, size)) return {};
  return fail(ErrorCode::kProtocol, "receive {} on {}: its fragments do not add up to the {} bytes announced",
              arrival.sequence, window_->comm().comm->device(), size);
}

/// Tells the plan where the bytes belong: nowhere if that is not to be touched any more.
Incoming::Landed Incoming::land(Posted& posted) {
  Landed landed{std::move(posted.chunk), {}, {}, posted.staged};
  if (posted.dropped && posted.places.pieces.empty()) return landed;
  landed.status = check_alive(posted.places.pieces);
  if (landed.status && posted.dropped) {
    landed.status = fail(ErrorCode::kNotFound, "write to a region: it was revoked");
  }
  if (!landed.status) return landed;
  for (auto& owner : posted.places.owners) {
    if (!landed.accesses.emplace_back(std::move(owner))) {
      landed.accesses.clear();
      landed.status = fail(ErrorCode::kNotFound, "write to a region: it was revoked");
      return landed;
    }
  }
  for (const LocalRange& piece : posted.places.pieces) plan_.belong(piece.data, piece.size);
  return landed;
}

/// In order, since the plugin wants its receives back in order.
Result<bool> Incoming::finish_landings() {
  bool moved = false;
  while (!landings_.empty()) {
    Landing& landing = landings_.front();
    const auto ended = spare_receives_.reclaim(landing.receive);
    if (!ended) return ended;
    if (!*ended) break;
    if (auto finished = finish(landing.landed); !finished) return tl::unexpected(finished.error());
    landings_.pop_front();
    moved = true;
  }
  return moved;
}

Status Incoming::finish(Landed& landed) {
  if (auto consumed = window_->consume(); !consumed) return consumed;
  if (landed.staged != nullptr) staging_->give_back(landed.staged, landed.chunk.size);
  landed.accesses.clear();
  handler_.landed(landed.chunk, landed.status);
  return {};
}

}  // namespace p2p::nccl_net
