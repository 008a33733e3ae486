// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/ring_hands.h"

#include <utility>

#include "base/error.h"
#include "transport/cuda_ipc/memory/regions.h"
#include "transport/cuda_ipc/requests/channel_messages.h"

namespace p2p::cuda_ipc {
namespace {

// Regions of the engine's own count from the other end.
constexpr std::uint32_t kFirstRing = ~std::uint32_t{0};

}  // namespace

Result<std::shared_ptr<RingSlots>> RingHands::ring_for(const Segment& piece) {
  const RegionInfo& local = piece.registration->info();
  if (local.place.kind != MemoryKind::kCuda) {
    return fail(ErrorCode::kUnavailable, "host memory is not copied by way of a ring");
  }
  auto ring = static_cast<const PrivateMemory&>(*piece.key).ring_for(local.place.device);
  if (!ring) return tl::unexpected(std::move(ring.error()));
  return std::move(*ring);
}

Result<bool> RingHands::start(RingLoad& load) {
  const auto& local = static_cast<const LocalMemory&>(*load.registration);
  const auto& ring = static_cast<const PeerRing&>(*load.ring);
  const int device = local.info().place.device;
  if (const Status alive = local.check_alive(); !alive) return tl::unexpected(alive.error());
  const auto reached = ring.reach(device);
  if (!reached) return tl::unexpected(reached.error());
  load.copies = {};
  const auto part = load.copies.part(copiers_, device);
  if (!part) return tl::unexpected(part.error());
  if (part->list == nullptr) return false;
  const device::Ways ways = warmup_.ways();
  const bool write = load.operation == Operation::kWrite;
  for (const RingLoad::Piece& piece : load.pieces) {
    std::byte* const there = *reached + piece.at;
    part->add({write ? piece.local : there, write ? there : piece.local, piece.size}, ways);
  }
  load.copies.start();
  return true;
}

bool RingHands::finished(RingLoad& load, Status& status) {
  if (!load.copies.finished()) return false;
  status = load.copies.status();
  return true;
}

void RingHands::ask(const RingLoad& load) {
  const auto ring = std::static_pointer_cast<PeerRing>(load.ring);
  const RegionId mine = offer_ring(ring);
  RequestList list(load.number, load.operation);
  for (const RingLoad::Piece& piece : load.pieces) {
    list.add(*load.key, piece.remote, mine, ring->base() + piece.at, piece.size);
  }
  for (const CopyRequest& request : list.requests()) mail_.ask(encode(request));
}

void RingHands::talk_by_words(const Segment& piece) {
  if (mail_.asks_by_words()) return;
  if (const auto ring = ring_for(piece)) offer_ring(std::static_pointer_cast<PeerRing>(*ring));
}

// Under which number the peer knows it.
RegionId RingHands::offer_ring(const std::shared_ptr<PeerRing>& ring) {
  const auto [known, fresh] =
      rings_.try_emplace(ring, RegionId{kFirstRing - static_cast<std::uint32_t>(rings_.size())});
  if (!fresh) return known->second;
  RingOffer offer{.region = known->second, .ring = ring->number(), .token = ring->token()};
  unsigned pair = 0;
  if (!mail_.asks_by_words()) {
    const auto taken = ring->take_words();
    offer.has_words = taken.has_value();
    pair = taken.value_or(0);
  }
  offer.words = static_cast<std::uint8_t>(pair);
  mail_.ask(encode(offer));
  if (offer.has_words) mail_.ask_by(ring, ring->words().direction(1, pair), ring->words().direction(0, pair));
  return known->second;
}

}  // namespace p2p::cuda_ipc
