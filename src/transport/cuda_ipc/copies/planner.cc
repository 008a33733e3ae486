// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/copies/planner.h"

#include <algorithm>

#include "base/error.h"
#include "transport/cuda_ipc/memory/regions.h"

namespace p2p::cuda_ipc {
namespace {

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

bool Planner::add(const Batch& batch) {
  const bool write = batch.operation == Operation::kWrite;
  batch.for_each_run([&](const Segment& run) { add_run(run, write); },
                     [&](std::span<const Segment> whole) { return add_alike(whole, write); });
  return !full_;
}

void Planner::add_run(const Segment& run, bool write) {
  std::byte* const peer = enter(run);
  if (peer == nullptr) return;
  if (run.repeats == nullptr) return add_parts(run, peer, write);
  path_.part.add_rows(rows_of(run, peer, write));
}

// Where the piece's end at the peer is mapped; null: it is none to be copied here.
std::byte* Planner::enter(const Segment& piece) {
  if (full_ || !plan_.status) return nullptr;
  if (piece.registration != seen_.first || piece.key != seen_.second) apart_ = apart_of(piece);
  seen_ = {piece.registration, piece.key};
  if (apart_ != nullptr) {
    apart_->push_back(piece);
    return nullptr;
  }
  if (piece.registration != path_.registration || piece.key != path_.key) {
    const auto found = find_path(piece);
    if (!found) plan_.status = tl::unexpected(found.error());
    full_ = found && !*found;
    if (!found || full_) return nullptr;
  }
  if (Status good = piece.repeats == nullptr ? within(piece) : all_within(piece); !good) {
    plan_.status = std::move(good);
    return nullptr;
  }
  return path_.peer + (piece.remote - base_of(piece));
}

// Blocks for a kernel, for as long as the path stays the same. A list of small blocks costs what this loop
// does, so that it works on copies which nothing that it writes may change.
Batch::Taken Planner::add_alike(std::span<const Segment> whole, bool write) {
  if (full_ || !plan_.status || path_.part.list == nullptr || !path_.seams.empty()) return {};
  const auto [registration, key] = std::pair(path_.registration, path_.key);
  const auto base = reinterpret_cast<std::uint64_t>(key->info().base);
  const std::uint64_t size = key->info().size, bulk = path_.ways.bulk_bytes;
  std::byte* const region = path_.peer;
  kernels::CopyBlock* const blocks = path_.part.room();
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
  path_.part.added(more);
  return {more.count, more.total};
}

std::vector<Segment>* Planner::apart_of(const Segment& piece) {
  const auto* const there = dynamic_cast<const PrivateMemory*>(piece.key);
  if (there == nullptr) return nullptr;
  const auto& local = static_cast<const LocalMemory&>(*piece.registration);
  return there->owner_reaches(local) ? &plan_.asked : &plan_.closed;
}

// A piece with seams goes by copy engine, part by part: of blocks for kernels a list has no room for more
// than there are pieces.
void Planner::add_parts(const Segment& piece, std::byte* peer, bool write) {
  const auto add = [&](std::byte* local, std::uint64_t size, const device::Ways& ways) {
    std::byte* const there = peer + (local - piece.local);
    path_.part.add({write ? local : there, write ? there : local, size}, ways);
  };
  const std::byte* const end = piece.local + piece.size;
  std::byte* at = piece.local;
  for (std::byte* const seam : path_.seams) {
    if (seam <= at || seam >= end) continue;
    add(at, static_cast<std::uint64_t>(seam - at), {});
    at = seam;
  }
  add(at, static_cast<std::uint64_t>(end - at), at == piece.local ? path_.ways : device::Ways{});
}

// False: no list is free.
Result<bool> Planner::find_path(const Segment& piece) {
  const auto& local = static_cast<const LocalMemory&>(*piece.registration);
  const auto& peer = static_cast<const PeerMemory&>(*piece.key);
  if (const Status alive = local.check_alive(); !alive) return tl::unexpected(alive.error());
  const bool host = local.info().place.kind == MemoryKind::kHost;
  const int device = host ? peer.device_for_host() : local.info().place.device;
  const auto reached = peer.reach(device);
  if (!reached) return tl::unexpected(reached.error());
  const auto part = plan_.copies.part(copiers_, device);
  if (!part) return tl::unexpected(part.error());
  if (part->list == nullptr) return false;
  path_ = {piece.registration, piece.key, *part, *reached, {}, {}};
  if (local.ready_for_kernels()) {
    path_.ways = warmup_.ways();
  }
  path_.seams = local.seams();
  return true;
}

}  // namespace p2p::cuda_ipc
