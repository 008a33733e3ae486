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

std::uint64_t base_of(const Segment& piece) {
  return reinterpret_cast<std::uint64_t>(piece.key->info().base);
}

Status within(const Segment& piece) {
  const std::uint64_t offset = piece.remote - base_of(piece), size = piece.key->info().size;
  if (offset <= size && piece.size <= size - offset) return {};
  return fail(ErrorCode::kOutOfRange, "{} bytes at {:#x} lie outside the peer's region", piece.size,
              piece.remote);
}

// The corners of what repeats are its lowest and its highest block.
Status all_within(const Segment& run) {
  const Repeats& repeats = *run.repeats;
  const std::uint64_t along = (repeats.count - 1) * static_cast<std::uint64_t>(repeats.remote_stride);
  const std::uint64_t down = (repeats.rows - 1) * static_cast<std::uint64_t>(repeats.remote_row);
  for (const std::uint64_t corner : {std::uint64_t{0}, along, down, along + down}) {
    Segment block = run;
    block.remote += corner;
    block.size = repeats.block;
    if (Status good = within(block); !good) return good;
  }
  return {};
}

kernels::CopyRows rows_of(const Segment& run, std::byte* peer, bool write) {
  const Repeats& repeats = *run.repeats;
  auto from = std::pair(static_cast<std::uint64_t>(repeats.local_stride),
                        static_cast<std::uint64_t>(repeats.local_row));
  auto to = std::pair(static_cast<std::uint64_t>(repeats.remote_stride),
                      static_cast<std::uint64_t>(repeats.remote_row));
  if (!write) std::swap(from, to);
  return {.first = {write ? run.local : peer, write ? peer : run.local, repeats.block},
          .count = repeats.count,
          .source_stride = from.first,
          .target_stride = to.first,
          .rows = repeats.rows,
          .source_row = from.second,
          .target_row = to.second};
}

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

bool IpcChannel::post(const Batch& batch) {
  Flight flight;
  flight.id = batch.id;
  if (batch.segments.size() > own_.warmup->copiers().limits().blocks) {
    flight.status = fail(ErrorCode::kInvalidArgument, "a batch of {} segments, {} at most",
                         batch.segments.size(), own_.warmup->copiers().limits().blocks);
  } else if (plan(batch, flight) == Planned::kFull) {
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
  if (flight.status && plan(copy->batch(), flight) == Planned::kFull) {
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

IpcChannel::Planned IpcChannel::plan(const Batch& batch, Flight& flight) {
  Path path;
  std::pair<const Registration*, const RemoteKey*> seen;
  std::vector<Segment>* apart = nullptr;  // what is not copied here and now
  bool full = false;
  const bool write = batch.operation == Operation::kWrite;
  // Where the piece's end at the peer is mapped; null: it is none to be copied here.
  const auto enter = [&](const Segment& piece) -> std::byte* {
    if (full || !flight.status) return nullptr;
    if (piece.registration != seen.first || piece.key != seen.second) apart = apart_of(piece, flight);
    seen = {piece.registration, piece.key};
    if (apart != nullptr) {
      apart->push_back(piece);
      return nullptr;
    }
    if (piece.registration != path.registration || piece.key != path.key) {
      const auto found = find_path(piece, flight, path);
      if (!found) flight.status = tl::unexpected(found.error());
      full = found && !*found;
      if (!found || full) return nullptr;
    }
    if (Status good = piece.repeats == nullptr ? within(piece) : all_within(piece); !good) {
      flight.status = std::move(good);
      return nullptr;
    }
    return path.peer + (piece.remote - base_of(piece));
  };
  batch.for_each_run(
      [&](const Segment& run) {
        std::byte* const peer = enter(run);
        if (peer == nullptr) return;
        if (run.repeats == nullptr) return add(path, run, peer, write);
        path.part.add_rows(rows_of(run, peer, write));
      },
      [&](std::span<const Segment> whole) {
        return full || !flight.status ? Batch::Taken{} : add_alike(path, whole, write);
      });
  return full ? Planned::kFull : Planned::kYes;
}

// Blocks for a kernel, for as long as the path stays the same. A list of small blocks costs what this loop
// does, so that it works on copies which nothing that it writes may change.
Batch::Taken IpcChannel::add_alike(const Path& path, std::span<const Segment> whole, bool write) {
  if (path.part.list == nullptr || !path.seams.empty()) return {};
  const auto [registration, key] = std::pair(path.registration, path.key);
  const auto base = reinterpret_cast<std::uint64_t>(key->info().base);
  const std::uint64_t size = key->info().size, bulk = path.ways.bulk_bytes;
  std::byte* const region = path.peer;
  kernels::CopyBlock* const blocks = path.part.room();
  kernels::CopyList more;
  for (const Segment& piece : whole) {
    const std::uint64_t offset = piece.remote - base;
    const bool alike = piece.registration == registration && piece.key == key && piece.repeats == nullptr;
    if (!alike || piece.size >= bulk || offset > size || piece.size > size - offset) break;
    std::byte* const peer = region + offset;
    blocks[more.count++] = {write ? piece.local : peer, write ? peer : piece.local, piece.size};
    more.total += piece.size;
    more.largest = std::max(more.largest, piece.size);
  }
  path.part.added(more);
  return {more.count, more.total};
}

std::vector<Segment>* IpcChannel::apart_of(const Segment& piece, Flight& flight) {
  const auto* const there = dynamic_cast<const PrivateMemory*>(piece.key);
  if (there == nullptr) return nullptr;
  const auto& local = static_cast<const LocalMemory&>(*piece.registration);
  return there->owner_reaches(local) ? &flight.asked : &flight.closed;
}

// A piece with seams goes by copy engine, part by part: of blocks for kernels a list has no room for more
// than there are pieces.
void IpcChannel::add(const Path& path, const Segment& piece, std::byte* peer, bool write) {
  const auto add = [&](std::byte* local, std::uint64_t size, const device::Ways& ways) {
    std::byte* const there = peer + (local - piece.local);
    path.part.add({write ? local : there, write ? there : local, size}, ways);
  };
  const std::byte* const end = piece.local + piece.size;
  std::byte* at = piece.local;
  for (std::byte* const seam : path.seams) {
    if (seam <= at || seam >= end) continue;
    add(at, static_cast<std::uint64_t>(seam - at), {});
    at = seam;
  }
  add(at, static_cast<std::uint64_t>(end - at), at == piece.local ? path.ways : device::Ways{});
}

// False: no list is free.
Result<bool> IpcChannel::find_path(const Segment& piece, Flight& flight, Path& path) {
  const auto& local = static_cast<const LocalMemory&>(*piece.registration);
  const auto& peer = static_cast<const PeerMemory&>(*piece.key);
  if (const Status alive = local.check_alive(); !alive) return tl::unexpected(alive.error());
  const bool host = local.info().place.kind == MemoryKind::kHost;
  const int device = host ? peer.device_for_host() : local.info().place.device;
  const auto reached = peer.reach(device);
  if (!reached) return tl::unexpected(reached.error());
  const auto part = flight.copies.part(copiers_, device);
  if (!part) return tl::unexpected(part.error());
  if (part->list == nullptr) return false;
  path = {piece.registration, piece.key, *part, *reached, {}, {}};
  if (local.ready_for_kernels()) {
    path.ways = own_.warmup->ways();
  }
  path.seams = local.seams();
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
