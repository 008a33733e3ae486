// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/channel.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/underlying.h"
#include "drivers/cuda/device.h"

namespace p2p::cuda_ipc {
namespace {

// More batches than a peer's channel has under way; of how many bytes makes no difference here.
constexpr std::size_t kMaxServed = 256;
constexpr std::uint64_t kAnyBytes = ~std::uint64_t{0};

}  // namespace

IpcChannel::IpcChannel(Own own)
    : own_(std::move(own)),
      copiers_(own_.warmup->copiers()),
      offered_(own_.import),
      served_(own_.regions, {kMaxServed, own_.warmup->copiers().limits().blocks, kAnyBytes}),
      mail_(own_.control) {
  own_.warmup->add_channel();
}

IpcChannel::~IpcChannel() {
  leave();
  own_.warmup->note_ended(flights_.size());
  own_.warmup->remove_channel();
  if (own_.advertised && own_.control != nullptr) own_.advertised->remove(*own_.control);
}

Status IpcChannel::connect(std::span<const std::byte> peer_address) {
  const auto peer = decode_address(peer_address);
  if (!peer) return tl::unexpected(peer.error());
  if (peer->process.boot != own_.process.boot) {
    return fail(ErrorCode::kUnavailable, "the peer runs on another machine");
  }
  const auto meeting = own_.link.connect(own_.process, peer->process, peer->twin);
  if (!meeting) return tl::unexpected(meeting.error());
  const bool same_process = peer->process == own_.process;
  if (!same_process && peer->probe) own_.warmup->note_probe(peer->process, *peer->probe);
  description_ = same_process ? "within this process" : fmt::format("to process {}", peer->process.pid);
  awaits_twin_ = *meeting == TwinLink::Meeting::kAwaited;
  if (awaits_twin_) return {};
  if (*meeting != TwinLink::Meeting::kNone) {
    own_.control->send(encode(TwinMet{.linked = *meeting == TwinLink::Meeting::kMet}));
  }
  state_ = ChannelState::kReady;
  return {};
}

LeavesPeer::Left IpcChannel::leave() {
  state_ = ChannelState::kFailed;
  Left left{own_.link.leave(copiers_.give_back()), {}};
  for (const Flight& flight : flights_) {
    if (flight.awaits_peer) left.held.push_back(flight.id);
  }
  return left;
}

// False: no list is free now.
bool IpcChannel::plan(const Batch& batch, Flight& flight) {
  return Planner(copiers_, *own_.warmup, flight).add(batch);
}

bool IpcChannel::post(const Batch& batch) {
  Flight flight;
  flight.id = batch.id;
  if (batch.segments.size() > own_.warmup->copiers().limits().blocks) {
    flight.status = fail(ErrorCode::kInvalidArgument, "a batch of {} segments, {} at most",
                         batch.segments.size(), own_.warmup->copiers().limits().blocks);
  } else if (!plan(batch, flight)) {
    flight.copies.drop();
    return false;
  }
  if (flight.status && !flight.asked.empty()) ask(flight, batch.operation);
  if (flight.status && !flight.closed.empty()) use_ring(flight, batch.operation);
  own_.warmup->note_begun();
  start(flight);
  flights_.push_back(std::move(flight));
  return true;
}

void IpcChannel::ask(Flight& flight, Operation operation) {
  ring_hands_.talk_by_words(flight.asked.front());
  RequestList list(to_underlying(flight.id), operation);
  const Registration* offered = nullptr;
  for (const Segment& piece : flight.asked) {
    const auto& local = static_cast<const LocalMemory&>(*piece.registration);
    if (offered == nullptr || offered != &local) flight.status = offer(local);
    if (!flight.status) return;
    offered = &local;
    list.add(*piece.key, piece.remote, local.info().id, reinterpret_cast<std::uint64_t>(piece.local),
             piece.size);
  }
  for (const CopyRequest& request : list.requests()) mail_.ask(encode(request));
  flight.awaits_peer = true;
}

Status IpcChannel::offer(const LocalMemory& region) {
  if (own_.control == nullptr || !region.shareable()) {
    return fail(ErrorCode::kUnavailable, "the memory of neither side can be shared between processes");
  }
  if (const Status alive = region.check_alive(); !alive) return alive;
  if (!own_.advertised->add(*own_.control, region.info().id)) return {};
  mail_.ask(encode(RegionOffer{.region = region.info().id,
                               .base = reinterpret_cast<std::uint64_t>(region.info().base),
                               .size = region.info().size,
                               .exported = region.export_key()}));
  return {};
}

// Starts what the peer has asked for, as far as there is room.
void IpcChannel::serve() {
  if (full_ && !serve(std::move(full_))) return;
  while (auto copy = served_.take()) {
    if (!serve(std::move(copy))) return;
  }
}

// False: no list is free now.
bool IpcChannel::serve(std::unique_ptr<ServedCopy> copy) {
  Flight flight;
  flight.status = copy->status;
  if (flight.status && !plan(copy->batch(), flight)) {
    flight.copies.drop();
    full_ = std::move(copy);
    return false;
  }
  if (flight.status && !(flight.asked.empty() && flight.closed.empty())) {
    flight.status =
        fail(ErrorCode::kUnavailable, "the memory of neither side can be shared between processes");
  }
  flight.served = std::move(copy);
  own_.warmup->note_begun();
  start(flight);
  flights_.push_back(std::move(flight));
  return true;
}

void IpcChannel::start(Flight& flight) {
  if (!flight.status) return flight.copies.drop();
  flight.copies.start();
}

// True once the flight has ended.
bool IpcChannel::advance(Flight& flight) {
  if (flight.awaits_peer || (flight.ringed && !flight.ringed->ended())) return false;
  if (!flight.copies.finished()) return false;
  if (flight.status) flight.status = flight.copies.status();
  if (flight.ringed && flight.status) flight.status = flight.ringed->status();
  return true;
}

void IpcChannel::end(Flight& flight, std::vector<Completion>& completions) {
  if (!flight.served) {
    completions.push_back({flight.id, std::move(flight.status)});
    return;
  }
  const std::uint64_t number = flight.served->number;
  flight.served.reset();  // the peer may take the memory back from now on
  mail_.answer(encode(CopyOutcome{number, std::move(flight.status)}));
}

bool IpcChannel::progress(std::vector<Completion>& completions) {
  const auto mail = state_ == ChannelState::kReady ? take_mail() : Result<bool>(false);
  if (!mail) {
    error_ = mail.error();
    state_ = ChannelState::kFailed;
  }
  bool moved = ring_copies_.advance() || mail.value_or(true);
  serve();
  for (std::size_t i = 0; i < flights_.size();) {
    Flight& flight = flights_[i];
    if (!advance(flight)) {
      ++i;
      continue;
    }
    end(flight, completions);
    flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(i));
    own_.warmup->note_ended(1);
    moved = true;
  }
  return moved;
}

}  // namespace p2p::cuda_ipc
