// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/channel.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "drivers/cuda/device.h"

namespace p2p::cuda_ipc {
IpcChannel::IpcChannel(Own own) : own_(std::move(own)) { own_.firsts->add_channel(); }

IpcChannel::~IpcChannel() {
  for (auto& [device, copier] : copiers_) own_.firsts->copiers().give_back(std::move(copier));
  own_.firsts->remove_channel();
}

Status IpcChannel::connect(std::span<const std::byte> peer_address) {
  const auto peer = decode_address(peer_address);
  if (!peer) return tl::unexpected(peer.error());
  if (peer->process.boot != own_.process.boot) {
    return fail(ErrorCode::kUnavailable, "the peer runs on another machine");
  }
  const bool same_process = peer->process == own_.process;
  if (!same_process && peer->probe) {
    if (const Status probed = try_probe(*peer->probe); probed) {
      own_.firsts->note_probe(peer->process, *peer->probe);
    } else {
      log(LogLevel::kInfo, "cuda_ipc to process {}: memory of cudaMalloc cannot be shared: {}",
          peer->process.pid, probed.error().message);
    }
  }
  description_ = same_process ? "within this process" : fmt::format("to process {}", peer->process.pid);
  state_ = ChannelState::kReady;
  return {};
}

// Finds out now what would otherwise fail at the first import of memory from cudaMalloc: two containers'
// first processes, another user's. Memory of other kinds may do all the same. A process that uses no device
// gets no context for this: it finds out when it imports.
Status IpcChannel::try_probe(const SharedMemory& probe) {
  const std::vector<int> active = cuda::active_devices();
  if (active.empty()) return {};
  const auto mapping = own_.firsts->mappings().get(probe, {}, active.front());
  if (!mapping) return tl::unexpected(mapping.error());
  return {};
}

bool IpcChannel::post(const Batch& batch) {
  Flight flight;
  flight.id = batch.id;
  if (batch.segments.size() > own_.firsts->copiers().limits().blocks) {
    flight.status = fail(ErrorCode::kInvalidArgument, "a batch of {} segments, {} at most",
                         batch.segments.size(), own_.firsts->copiers().limits().blocks);
  } else if (plan(batch, flight) == Planned::kFull) {
    release(flight);
    return false;
  }
  start(flight);
  flights_.push_back(std::move(flight));
  return true;
}

IpcChannel::Planned IpcChannel::plan(const Batch& batch, Flight& flight) {
  Path path;
  bool full = false;
  batch.for_each_piece([&](const Segment& piece) {
    if (full || !flight.status) return;
    if (piece.registration != path.registration || piece.key != path.key) {
      const auto found = find_path(piece, flight, path);
      if (!found) flight.status = tl::unexpected(found.error());
      full = found && !*found;
      if (!found || full) return;
    }
    const RegionInfo& region = piece.key->info();
    const std::uint64_t offset = piece.remote - reinterpret_cast<std::uint64_t>(region.base);
    if (offset > region.size || piece.size > region.size - offset) {
      flight.status = fail(ErrorCode::kOutOfRange, "{} bytes at {:#x} lie outside the peer's region",
                           piece.size, piece.remote);
      return;
    }
    add(path, piece, path.peer + offset, batch.operation == Operation::kWrite);
  });
  return full ? Planned::kFull : Planned::kYes;
}

// A piece with seams goes by copy engine, part by part: of blocks for kernels a list has no room for more
// than there are pieces.
void IpcChannel::add(const Path& path, const Segment& piece, std::byte* peer, bool write) {
  const auto add = [&](std::byte* local, std::uint64_t size, const device::Ways& ways) {
    std::byte* const there = peer + (local - piece.local);
    path.part.copier->add(*path.part.list, {write ? local : there, write ? there : local, size}, ways);
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
  const auto part = part_for(device, flight);
  if (!part) return tl::unexpected(part.error());
  if (part->list == nullptr) return false;
  path = {piece.registration, piece.key, *part, *reached, {}, {}};
  if (local.ready_for_kernels()) {
    path.ways = host ? own_.firsts->host_ways() : own_.firsts->ways(device, peer.device());
  }
  path.seams = local.seams();
  return true;
}

Result<IpcChannel::Part> IpcChannel::part_for(int device, Flight& flight) {
  for (const Part& part : flight.parts) {
    if (part.copier->device() == device) return part;
  }
  const auto copier = copier_for(device);
  if (!copier) return tl::unexpected(copier.error());
  const Part part{*copier, (*copier)->take()};
  if (part.list != nullptr) flight.parts.push_back(part);
  return part;
}

Result<device::Copier*> IpcChannel::copier_for(int device) {
  std::unique_ptr<device::Copier>& copier = copiers_[device];
  if (!copier) {
    auto opened = own_.firsts->copiers().take(device);
    if (!opened) return tl::unexpected(opened.error());
    copier = std::move(*opened);
  }
  return copier.get();
}

void IpcChannel::start(Flight& flight) {
  if (!flight.status) return release(flight);
  for (const Part& part : flight.parts) part.copier->start(*part.list);
}

void IpcChannel::release(Flight& flight) {
  for (const Part& part : flight.parts) part.copier->give_back(*part.list);
  flight.parts.clear();
}

// True once the flight has ended.
bool IpcChannel::advance(Flight& flight) {
  for (const Part& part : flight.parts) {
    if (!part.copier->finished(*part.list)) return false;
  }
  for (const Part& part : flight.parts) {
    if (flight.status) flight.status = part.list->status();
  }
  release(flight);
  return true;
}

bool IpcChannel::progress(std::vector<Completion>& completions) {
  bool moved = false;
  for (std::size_t i = 0; i < flights_.size();) {
    Flight& flight = flights_[i];
    if (!advance(flight)) {
      ++i;
      continue;
    }
    completions.push_back({flight.id, std::move(flight.status)});
    flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(i));
    moved = true;
  }
  if (!flights_.empty()) return moved;
  for (const auto& [device, copier] : copiers_) {
    if (copier) copier->rest();
  }
  return moved;
}

}  // namespace p2p::cuda_ipc
