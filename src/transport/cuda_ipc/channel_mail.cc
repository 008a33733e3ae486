// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a channel's peer tells it.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/underlying.h"
#include "transport/cuda_ipc/channel.h"

namespace p2p::cuda_ipc {
namespace {

// Messages of a turn: more than the words of an honest peer hold.
constexpr int kMostMessages = 1 << 14;

}  // namespace

Status IpcChannel::on_control(std::span<const std::byte> message) {
  if (const auto taken = take_mail(); !taken) return tl::unexpected(taken.error());  // it was sent before
  return take(message, true);
}

// True if there was some.
Result<bool> IpcChannel::take_mail() {
  int taken = 0;
  for (; taken != kMostMessages; ++taken) {
    const auto next = mail_.next(words_);
    if (!next) return tl::unexpected(next.error());
    if (!*next) break;
    if (const Status good = take(words_, false); !good) return tl::unexpected(good.error());
  }
  return taken != 0;
}

Status IpcChannel::take(ByteView message, bool by_link) {
  auto decoded = decode_message(message);
  if (!decoded) return tl::unexpected(decoded.error());
  if (auto* const outcome = std::get_if<CopyOutcome>(&*decoded)) return take_outcome(std::move(*outcome));
  if (std::holds_alternative<Look>(*decoded)) return {};
  if (const auto* const withdrawn = std::get_if<RegionWithdrawn>(&*decoded)) {
    offered_.remove(withdrawn->region);
    return {};
  }
  if (const auto* const met = std::get_if<TwinMet>(&*decoded)) return take_met(*met);
  if (by_link) mail_.note_asked();
  if (auto* const offered = std::get_if<RegionOffer>(&*decoded)) return offered_.add(std::move(*offered));
  if (const auto* const lent = std::get_if<RingOffer>(&*decoded)) return take_leased(*lent);
  auto& request = std::get<CopyRequest>(*decoded);
  auto mine = offered_.find(request.mine);
  if (!mine) return tl::unexpected(mine.error());
  return served_.add(std::move(request), std::move(*mine));
}

// The acceptor copies nothing before: the connector would not know whom to wait for.
Status IpcChannel::take_met(const TwinMet& met) {
  if (!std::exchange(awaits_twin_, false)) {
    return fail(ErrorCode::kProtocol, "a cuda_ipc peer says twice, or unasked, that it has met its twin");
  }
  if (const Status linked = own_.link.met(met.linked); !linked) return linked;
  state_ = ChannelState::kReady;
  return {};
}

Status IpcChannel::take_outcome(CopyOutcome outcome) {
  const auto unasked = [] {
    return fail(ErrorCode::kProtocol, "the outcome of a copy that nobody asked a cuda_ipc peer for");
  };
  if ((outcome.batch & RingCopies::kNumbers) != 0) {
    if (ring_copies_.answered(outcome.batch, std::move(outcome.status))) return {};
    return unasked();
  }
  const auto flight = std::ranges::find_if(flights_, [&](const Flight& each) {
    return each.awaits_peer && static_cast<std::uint64_t>(each.id) == outcome.batch;
  });
  if (flight == flights_.end()) return unasked();
  flight->awaits_peer = false;
  if (flight->status) flight->status = std::move(outcome.status);
  return {};
}

// A ring that this process has lent to the peer's.
Status IpcChannel::take_leased(const RingOffer& offer) {
  if (!own_.leases) return fail(ErrorCode::kProtocol, "a cuda_ipc peer names a ring where none is lent");
  auto ring = own_.leases->find(offer.ring, offer.token);
  if (!ring) return tl::unexpected(ring.error());
  if (offer.has_words) {
    const RingMemory& words = (*ring)->words();
    const bool taken =
        (*ring)->take_words(offer.words) &&
        mail_.serve_by(*ring, words.direction(1, offer.words), words.direction(0, offer.words));
    if (!taken) return fail(ErrorCode::kProtocol, "a cuda_ipc peer wants words that it cannot have");
  }
  return offered_.add_leased(offer.region, own_.leases->key_of(std::move(*ring), offer.region));
}

void IpcChannel::use_ring(Flight& flight, Operation operation) {
  if (own_.control == nullptr) {
    flight.status =
        fail(ErrorCode::kUnavailable, "the memory of neither side can be shared between processes");
    return;
  }
  flight.ringed = std::make_unique<RingJob>(operation, std::move(flight.closed));
  ring_copies_.add(*flight.ringed);
}

void IpcChannel::abandon(BatchId id) {
  for (Flight& flight : flights_) {
    if (flight.id == id && !flight.served && flight.ringed) flight.ringed->stop();
  }
}

}  // namespace p2p::cuda_ipc
